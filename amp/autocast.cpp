#include "demi/amp/autocast.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "demi/autograd/parameter.h"

namespace demi::amp {
namespace {

thread_local DType region = DType::F32;  // FP32: no region

// What runs in which precision, and so the whole of autocast's policy.
constexpr std::string_view kSums = "products and sums in FP32, rounded once", kEach = "FP32, rounded once",
                           kExact = "exact: picks or moves values";
constexpr std::array kRules{
    // Sums of many products: tensor cores multiply 16-bit values exactly and add in FP32.
    OpRule{"conv2d", Rule::Lower, kSums},
    OpRule{"linear", Rule::Lower, kSums},
    OpRule{"matmul", Rule::Lower, kSums},
    // Results that leave FP16's range, or small differences of large values.
    OpRule{"exp", Rule::Float32, kEach},
    OpRule{"log", Rule::Float32, kEach},
    OpRule{"pow", Rule::Float32, kEach},
    OpRule{"square", Rule::Float32, kEach},
    OpRule{"reciprocal", Rule::Float32, kEach},
    OpRule{"rsqrt", Rule::Float32, kEach},
    OpRule{"softplus", Rule::Float32, kEach},
    OpRule{"softmax", Rule::Float32, "FP32"},
    OpRule{"log_softmax", Rule::Float32, "FP32"},
    OpRule{"layer_norm", Rule::Float32, "FP32"},
    OpRule{"sum", Rule::Float32, "FP32"},
    // Losses. Cross-entropy needs no cast of its own: it reads logits of any dtype.
    OpRule{"mse_loss", Rule::Float32, "FP32"},
    OpRule{"cross_entropy", Rule::Follow, "FP32; the loss is FP32"},
    // Bound by memory, so 16-bit operands halve the time.
    OpRule{"batch_norm", Rule::Follow, "statistics, parameters and arithmetic in FP32, rounded once"},
    OpRule{"relu", Rule::Follow, kExact},
    OpRule{"leaky_relu", Rule::Follow, kEach},
    OpRule{"max_pool2d", Rule::Follow, kExact},
    OpRule{"avg_pool2d", Rule::Follow, "sums in FP32, rounded once"},
    OpRule{"global_avg_pool", Rule::Follow, "sums in FP32, rounded once"},
    OpRule{"mean", Rule::Follow, "sums in FP32, rounded once"},
    OpRule{"dropout", Rule::Follow, kEach},
    OpRule{"amax", Rule::Follow, kExact},
    OpRule{"abs", Rule::Follow, kExact},
    OpRule{"neg", Rule::Follow, kExact},
    OpRule{"clamp", Rule::Follow, kExact},
    OpRule{"sqrt", Rule::Follow, kEach},
    OpRule{"tanh", Rule::Follow, kEach},
    OpRule{"sigmoid", Rule::Follow, kEach},
    OpRule{"silu", Rule::Follow, kEach},
    OpRule{"gelu", Rule::Follow, kEach},
    OpRule{"scale", Rule::Follow, kEach},
    OpRule{"reshape", Rule::Follow, kExact},
    OpRule{"permute", Rule::Follow, kExact},
    // Several tensors that must meet.
    OpRule{"add", Rule::Widest, kEach},
    OpRule{"sub", Rule::Widest, kEach},
    OpRule{"mul", Rule::Widest, kEach},
    OpRule{"div", Rule::Widest, kEach},
    OpRule{"maximum", Rule::Widest, kExact},
};

bool takes_part(const Variable& v) { return v.defined() && is_floating(v.dtype()) && v.dtype() != DType::F64; }

Variable in_dtype(const Variable& v, DType dtype) {
  if (!takes_part(v) || v.dtype() == dtype) return v;
  if (const Variable copy = compute_copy(v, dtype); copy.defined()) return copy;
  return cast(v, dtype);
}

// FP32 unless all inputs that take part share one dtype.
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

const OpRule* find_rule(std::string_view op) {
  const auto it = std::find_if(kRules.begin(), kRules.end(), [&](const OpRule& r) { return r.op == op; });
  return it == kRules.end() ? nullptr : &*it;
}

std::string op_table() {
  constexpr std::array takes{"FP16 or BF16, the region's dtype", "FP32", "what its input is",
                             "the widest of its inputs"};
  std::string table = "| operation | takes | inside |\n|---|---|---|\n";
  for (const OpRule& r : kRules)
    table += fmt::format("| {} | {} | {} |\n", r.op, takes[static_cast<size_t>(r.rule)], r.inside);
  return table;
}

std::vector<Variable> prepare(std::string_view op, std::vector<Variable> inputs) {
  const OpRule* listed = autocast_enabled() ? find_rule(op) : nullptr;
  const Rule rule = listed ? listed->rule : Rule::Widest;
  const DType target = rule == Rule::Lower ? region : rule == Rule::Float32 ? DType::F32 : widest(inputs);
  for (Variable& v : inputs) v = in_dtype(v, target);
  return inputs;
}

}  // namespace demi::amp
