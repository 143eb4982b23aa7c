// Flat parameter storage: the FP32 masters of many parameters in one contiguous buffer, and beside it, in the same
// order, their gradients and their 16-bit compute copies. A parameter is a slice of each. So zeroing, the finite check,
// clipping and the optimizer's update are one kernel over many parameters, and one cast refreshes all copies.
//
// A new parameter has a storage of its own; an optimizer moves its parameters into common ones.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/tensor.h"

namespace demi {

class FlatStorage : public std::enable_shared_from_this<FlatStorage> {
 public:
  static constexpr int64_t kAlignment = 64;  // elements; every slice starts at a multiple, padding between is zero

  FlatStorage(const std::vector<Shape>& slices, Device device);

  struct Slice {
    Shape shape;
    int64_t start = 0;  // in elements
  };
  const std::vector<Slice>& slices() const { return slices_; }
  int64_t numel() const { return numel_; }  // padding included
  Device device() const { return master_.device(); }

  Tensor& master() { return master_; }  // FP32 [numel]
  Tensor& gradient(DType dtype);        // FP32, FP16 or BF16 [numel], allocated and zeroed on first use
  // The masters rounded to FP16 or BF16 [numel]: made on first use, then kept fresh: when anything wrote to the masters
  // since, they are cast again here.
  const Tensor& copy(DType dtype);
  Tensor existing_copy(DType dtype) const { return copies_[slot(dtype)].values; }  // undefined where none was asked for
  bool fresh(DType dtype) const;  // FP16, BF16: the copy exists and is what the masters round to
  bool copies_fresh() const;      // every existing copy is what the masters round to
  void copies_written();          // the caller has just rewritten all existing copies from the masters
  // To be called before a captured step that will write masters and copies: each replay then begins with fresh copies
  // and ends with masters that everything else must take for changed.
  void follow_replays();
  Tensor view(const Tensor& flat, size_t slice) const;  // one slice of a buffer of this layout, in its shape

  bool owned_by_optimizer = false;

 private:
  static size_t slot(DType dtype);
  struct Copy {
    Tensor values;
    uint64_t master_version = 0;
  };
  std::vector<Slice> slices_;
  int64_t numel_ = 0;
  Tensor master_;
  std::array<Tensor, 3> gradients_;
  std::array<Copy, 3> copies_;
};

// One parameter: a slice of a FlatStorage, and whether it has a gradient and in which dtype. Absence is a flag on the
// host: zero_grad() clears it, the first gradient overwrites the slice, the next ones are added in FP32.
class ParameterState {
 public:
  explicit ParameterState(const Tensor& master);

  const Tensor& master() const { return master_; }
  const Tensor& compute(DType dtype);  // FP32: the master; FP16, BF16: its copy, never stale
  void assign(const Tensor& values);   // writes the master; same shape, any floating dtype and device
  void move_to(std::shared_ptr<FlatStorage> storage,
               size_t slice);  // takes the master's values along; no gradient then
  const std::shared_ptr<FlatStorage>& storage() const { return storage_; }
  size_t slice() const { return slice_; }

  bool has_grad() const { return has_grad_; }
  DType grad_dtype() const { return grad_dtype_; }
  Tensor grad() const;                 // undefined where there is none
  Tensor gradient_slice(DType dtype);  // where a gradient of that dtype lives, whether there is one or not
  void zero_grad() { has_grad_ = false; }
  void accumulate(const Tensor& gradient);
  void promote_grad();                                       // a 16-bit gradient moves to FP32 storage
  void set_grad_dtype(DType dtype) { grad_dtype_ = dtype; }  // the caller has moved the gradient there

  bool trainable = true;
  // C of a filter [K, R, S, C] or of a matrix that takes flattened images [K, (H, W, C)]; 0: neither. Where channels
  // come first, as in PyTorch, such weights lie in another order.
  int64_t channels = 0;
  // "layer1.0.conv1.weight" and the place among the model's parameters: for messages, given by the outermost module
  // that was moved or listed.
  std::string name{};
  int64_t order = 0;

 private:
  Tensor master_;
  std::array<Tensor, 3> computes_;
  std::shared_ptr<FlatStorage> storage_;
  size_t slice_ = 0;
  bool has_grad_ = false;
  DType grad_dtype_ = DType::F32;
};

}  // namespace demi
