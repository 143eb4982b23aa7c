// The safetensors file format: named tensors, and text beside them. 8 bytes of header length (little endian), a JSON
// header that gives each tensor's dtype, shape and place, then the bytes.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "demi/core/tensor.h"

namespace demi::nn {

struct Safetensors {
  std::map<std::string, Tensor> tensors;  // on the host
  std::map<std::string, std::string> metadata;
  bool checksummed = false;  // set by the reader: the file carried demi's checksum, and it was right
};

// Throws Error that names the file and what is wrong with it: unreadable, cut short, a header that does not fit, an
// unknown dtype, or, in files that demi wrote, any changed byte (their metadata carries a checksum).
Safetensors read_safetensors(const std::filesystem::path& path);

// Atomic: the file appears whole under its name, or the one before stays. Throws Error naming the file when it cannot
// be written (a full disk, say).
void write_safetensors(const std::filesystem::path& path, const Safetensors& content);

// Throws the Error that write_safetensors() would for a folder that is missing or cannot be written to: to be called
// before hours of work. Leaves nothing behind.
void check_writable(const std::filesystem::path& path);

}  // namespace demi::nn
