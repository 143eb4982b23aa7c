// The processor that the CPU backend runs on.
#pragma once

#include <string>

namespace demi {

std::string processor_name();  // as the system calls it; "unknown processor" where it does not tell

}  // namespace demi
