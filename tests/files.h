// Files in tests: a folder of their own, and whole files as strings.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "demi/core/tensor.h"

namespace demi::test {

namespace fs = std::filesystem;

// A folder that is gone after the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "demi_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path_), {})); }

 private:
  fs::path path_;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string bytes_of(const Tensor& t) {
  const Tensor host = t.to(Device::cpu());
  return t.numel() == 0 ? "" : std::string(static_cast<const char*>(host.raw()), host.bytes());
}

}  // namespace demi::test
