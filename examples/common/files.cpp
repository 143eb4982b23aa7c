#include "demi/examples/common/files.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "demi/core/error.h"

namespace demi::examples {

namespace fs = std::filesystem;

void write_whole(const fs::path& file, const std::string& text) {
  const fs::path part = file.string() + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  const int reason = errno;
  std::error_code error;
  if (out) {
    fs::rename(part, file, error);
    if (!error) return;
    fail("{}: cannot be written: {}", file.string(), error.message());
  }
  fs::remove(part, error);
  fail("{}: cannot be written: {}", file.string(), std::strerror(reason));
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("{}: cannot make this folder: {}", folder.string(), error.message());
}

}  // namespace demi::examples
