#include "demi/amp/autocast.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "demi/autograd/parameter.h"

namespace demi::amp {
namespace {

thread_local DType region = DType::F32;  // FP32: no region

// What runs in which precision, and so the whole of autocast's policy.
constexpr std::array kRules{
    // Sums of many products: exact products of 16-bit values, added in FP32 by the tensor cores.
    OpRule{"conv2d", Rule::Lower},
    OpRule{"linear", Rule::Lower},
    OpRule{"matmul", Rule::Lower},
    // Results that leave FP16's range, or small differences of large values.
    OpRule{"exp", Rule::Float32},
    OpRule{"log", Rule::Float32},
    OpRule{"pow", Rule::Float32},
    OpRule{"square", Rule::Float32},
    OpRule{"reciprocal", Rule::Float32},
    OpRule{"rsqrt", Rule::Float32},
    OpRule{"softplus", Rule::Float32},
    OpRule{"softmax", Rule::Float32},
    OpRule{"log_softmax", Rule::Float32},
    OpRule{"layer_norm", Rule::Float32},
    OpRule{"sum", Rule::Float32},
    // Losses. (cross_entropy reads 16-bit logits and computes in FP32 without a cast of its own.)
    OpRule{"mse_loss", Rule::Float32},
    OpRule{"cross_entropy", Rule::Follow},
    // Memory-bound: 16-bit halves the bytes. Batch norm keeps its statistics and parameters in FP32 whatever its input.
    OpRule{"batch_norm", Rule::Follow},
    OpRule{"relu", Rule::Follow},
    OpRule{"max_pool2d", Rule::Follow},
    OpRule{"avg_pool2d", Rule::Follow},
    OpRule{"global_avg_pool", Rule::Follow},
    OpRule{"dropout", Rule::Follow},
    OpRule{"add", Rule::Follow},
    OpRule{"sub", Rule::Follow},
    OpRule{"mul", Rule::Follow},
    OpRule{"div", Rule::Follow},
    OpRule{"maximum", Rule::Follow},
    OpRule{"mean", Rule::Follow},
    OpRule{"amax", Rule::Follow},
    OpRule{"abs", Rule::Follow},
    OpRule{"neg", Rule::Follow},
    OpRule{"sqrt", Rule::Follow},
    OpRule{"clamp", Rule::Follow},
    OpRule{"tanh", Rule::Follow},
    OpRule{"sigmoid", Rule::Follow},
    OpRule{"silu", Rule::Follow},
    OpRule{"gelu", Rule::Follow},
    OpRule{"scale", Rule::Follow},
    OpRule{"reshape", Rule::Follow},
    OpRule{"permute", Rule::Follow},
};

bool takes_part(const Variable& v) { return v.defined() && is_floating(v.dtype()) && v.dtype() != DType::F64; }

Variable in_dtype(const Variable& v, DType dtype) {
  if (!takes_part(v) || v.dtype() == dtype) return v;
  if (const Variable copy = compute_copy(v, dtype); copy.defined()) return copy;
  return cast(v, dtype);
}

// FP32 unless all floating inputs share one dtype.
DType widest(const std::vector<Variable>& inputs) {
  const Variable* first = nullptr;
  for (const Variable& v : inputs) {
    if (!takes_part(v)) continue;
    if (first && first->dtype() != v.dtype()) return DType::F32;
    first = &v;
  }
  return first ? first->dtype() : DType::F32;
}

}  // namespace

bool amp_allowed() {
  static const bool allowed = [] {
    const char* text = std::getenv("DEMI_AMP");
    return !(text && std::string_view(text) == "0");
  }();
  return allowed;
}

Autocast::Autocast(DType dtype, bool enabled) : before_(region) {
  DEMI_CHECK(dtype == DType::F32 || is_16bit(dtype), "[autocast] a region is fp16 or bf16 (fp32: off), not {}", dtype);
  region = enabled && amp_allowed() ? dtype : DType::F32;
}
Autocast::~Autocast() { region = before_; }

bool autocast_enabled() { return region != DType::F32; }
DType autocast_dtype() { return region; }

std::span<const OpRule> op_rules() { return kRules; }

Rule rule_of(std::string_view op) {
  const auto it = std::find_if(kRules.begin(), kRules.end(), [&](const OpRule& r) { return r.op == op; });
  return it == kRules.end() ? Rule::Follow : it->rule;
}

std::string op_table() {
  std::string table = "| operation | runs in |\n|---|---|\n";
  constexpr std::array names{"FP16 or BF16, the region's dtype", "FP32",
                             "its inputs' dtype; the widest where they differ"};
  for (const OpRule& r : kRules) table += fmt::format("| {} | {} |\n", r.op, names[static_cast<size_t>(r.rule)]);
  return table;
}

std::vector<Variable> prepare(std::string_view op, std::vector<Variable> inputs) {
  DType target = DType::F32;
  const Rule rule = autocast_enabled() ? rule_of(op) : Rule::Follow;
  if (rule == Rule::Lower) target = region;
  if (rule == Rule::Follow) target = widest(inputs);
  for (Variable& v : inputs) v = in_dtype(v, target);
  return inputs;
}

}  // namespace demi::amp
