// Op cases recorded from PyTorch, run through demi's public API and judged.
//
// A file of the format demi-op-cases-1 is a safetensors file whose metadata lists cases: an op, its attributes, and the
// names of the tensors that are its inputs, its expected outputs, the gradient of its first output and the gradients
// that backward must give. Layouts are PyTorch's, reals FP32, integers INT64.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "demi/nn/safetensors.h"

namespace demi::test {

struct OpCaseFile {
  nn::Safetensors content;
  std::vector<nlohmann::json> cases;
};

// Throws Error, naming the file, when it is not of the format.
OpCaseFile read_op_cases(const std::filesystem::path& path);

struct Verdict {
  enum class Kind { Passed, Failed, Skipped } kind = Kind::Passed;
  std::string name;                // the case's
  std::vector<std::string> notes;  // failed: each tensor with its error and limit; skipped: why
};

// Runs one case, forward and backward. In a 16-bit dtype its reals are converted to it, but for batch norm's
// parameters and statistics; optimizers, clipping and schedules run in FP32 whatever the dtype.
Verdict replay(const OpCaseFile& file, const nlohmann::json& c, Device device, DType dtype);

}  // namespace demi::test
