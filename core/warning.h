// Warnings: what a caller should know but may ignore. Each is one line on stderr.
#pragma once

#include <functional>
#include <string>

namespace demi {

void warn(const std::string& line);

// Gives warnings to `sink` instead, until the process ends or another is set; an empty one restores stderr.
void set_warning_sink(std::function<void(const std::string&)> sink);

}  // namespace demi
