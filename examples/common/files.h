// Files that programs write.
#pragma once

#include <filesystem>
#include <string>

namespace demi::examples {

// Writes a file beside its place first, then renames it: a reader never sees half of it. Throws Error naming the file.
void write_whole(const std::filesystem::path& file, const std::string& text);
// The folder and those above it, where they are missing.
void make_folder(const std::filesystem::path& folder);

}  // namespace demi::examples
