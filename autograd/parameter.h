// Parameter: a Variable that is trained: an FP32 master, its gradient and, on demand, 16-bit compute copies. And
// Buffer: state that is kept and saved but not trained, such as running statistics.
#pragma once

#include <memory>
#include <vector>

#include "demi/autograd/flat_storage.h"
#include "demi/autograd/variable.h"

namespace demi {

// A shared handle: copies are the same parameter.
class Parameter : public Variable {
 public:
  Parameter() = default;
  explicit Parameter(const Tensor& master);  // FP32

  const Tensor& master() const { return parameter().master(); }
  void assign(const Tensor& values) { parameter().assign(values); }
  // Not trained: gradients are dropped and optimizers leave it out.
  void freeze(bool frozen = true) { parameter().trainable = !frozen; }
  // Refused once an optimizer holds the parameter: its state would stay behind.
  void to(Device device);
  ParameterState& parameter() const { return *state()->parameter; }
};

// The parameter's values in another dtype, as a Variable whose gradient goes straight to the parameter. For a Variable
// that is no parameter, and for dtypes other than FP16 and BF16, it is undefined.
Variable compute_copy(const Variable& v, DType dtype);

// Shared handle to a tensor, FP32 or, for counts, int64. Buffers that a training step writes have a shadow, so that a
// step that was skipped can be undone: an optimizer flattens them, and at each step the shadow takes the values, or
// gives them back.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(const Tensor& values);
  bool defined() const { return state_ != nullptr; }
  const Tensor& tensor() const { return state_->values; }
  Tensor& tensor() { return state_->values; }  // for the op that updates it in a step
  void assign(const Tensor& values);           // values and shadow; same shape, cast
  void to(Device device);

 private:
  friend class GuardedBuffers;
  struct State {
    Tensor values, shadow;
  };
  std::shared_ptr<State> state_;
};

// The parameters and buffers of a module, as optimizers take them.
struct ParameterList {
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;  // those that training steps write

  ParameterList() = default;
  ParameterList(std::vector<Parameter> p) : parameters(std::move(p)) {}  // NOLINT: a plain list is fine too
  void append(const ParameterList& other);
  int64_t numel() const;
};

// Buffers in one flat tensor a dtype with a flat shadow: undone or kept by one kernel. At its end the buffers keep
// their values and are free to be guarded by another.
class GuardedBuffers {
 public:
  GuardedBuffers() = default;
  explicit GuardedBuffers(std::vector<Buffer> buffers);  // those that are guarded already are left out
  ~GuardedBuffers();
  GuardedBuffers(GuardedBuffers&& other) noexcept = default;
  GuardedBuffers& operator=(GuardedBuffers&& other) noexcept = default;
  void commit_or_restore(const Tensor& skip);

 private:
  std::vector<Buffer> buffers_;
  struct Flat {
    Tensor live, shadow;
  };
  Flat reals_, counts_;  // FP32, int64
};

}  // namespace demi
