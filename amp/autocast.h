// Autocast: inside a region each operation runs in the precision that suits it. Convolutions and matrix products take
// 16-bit inputs, where tensor cores are fast and FP32 accumulation keeps the sums; exponentials, norms, sums and losses
// take FP32, where range and small differences matter; the rest runs in the dtype its inputs have.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/autograd/variable.h"

namespace demi::amp {

// A region of one thread; regions nest, and the one before returns at the end. Run backward outside of it: gradients
// follow the dtypes that forward used. DEMI_AMP=0 in the environment, read once, switches every region and every
// GradScaler off.
class Autocast {
 public:
  // dtype: FP16 or BF16; FP32 means a region in which autocast is off, as enabled = false does.
  explicit Autocast(DType dtype = DType::F16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  DType before_;
};

bool autocast_enabled();  // of this thread
DType autocast_dtype();   // FP32 where it is off
bool amp_allowed();       // false when the environment says DEMI_AMP=0

enum class Rule : uint8_t {
  Lower,    // inputs are cast to the region's 16-bit dtype
  Float32,  // 16-bit inputs are cast to FP32
  Follow,   // its data's dtype. Parameters of norms are not asked: they are FP32 and read as such
  Widest,   // inputs that differ are cast to the widest: 16-bit with FP32 gives FP32, FP16 with BF16 gives FP32
};
struct OpRule {
  std::string_view op;
  Rule rule;
  std::string_view inside;  // what the kernel computes in, whatever its operands are
};
std::span<const OpRule> op_rules();  // the whole table
// nullptr for an operation that is not listed: it follows its inputs, the widest where they differ.
const OpRule* find_rule(std::string_view op);
std::string op_table();  // the table as Markdown, for people and for the docs

// The inputs of `op` in the dtypes that it shall run in; the functions of nn/functional begin with it, those that only
// move or mask values excepted. Casts are differentiable, and activations are cast at each use. A parameter's 16-bit
// version is its compute copy (autograd/flat_storage.h), which the optimizer keeps beside the FP32 master: no cast
// runs, and its gradient goes to the parameter. Outside a region, and for operations that follow, inputs of different
// dtypes meet in the wider one: 16-bit with FP32 gives FP32, FP16 with BF16 gives FP32. (PyTorch refuses a convolution
// of mixed inputs.) Undefined, integer and FP64 inputs stay.
std::vector<Variable> prepare(std::string_view op, std::vector<Variable> inputs);

// A policy for Function (autograd/function.h), as custom_fwd and custom_bwd are in PyTorch: inputs are cast to `dtype`,
// inside a region or not, and forward and backward run with autocast off.
template <DType dtype>
struct RunIn {
  struct Scope {
    Autocast off{DType::F32};
  };
  static Variable prepare(const Variable& v);
};

}  // namespace demi::amp

#include "demi/amp/cast.h"

template <demi::DType dtype>
demi::Variable demi::amp::RunIn<dtype>::prepare(const Variable& v) {
  return v.defined() && is_floating(v.dtype()) ? cast(v, dtype) : v;
}
