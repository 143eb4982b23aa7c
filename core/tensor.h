// Tensor: a shape, a dtype and a device over shared Storage. Always contiguous in row-major order; `reshape` and
// `narrow` are the only views. Images are [N, H, W, C]. A Tensor is a cheap handle: copying it copies no elements.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "demi/core/dtype.h"
#include "demi/core/shape.h"
#include "demi/core/storage.h"

namespace demi {

class Tensor {
 public:
  Tensor() = default;  // undefined: owns nothing; defined() is false

  static Tensor empty(const Shape& shape, DType dtype, Device device = {});  // elements are whatever was there
  static Tensor zeros(const Shape& shape, DType dtype, Device device = {});
  // A tensor holding a host array in row-major order; throws Error when the count does not match the shape.
  template <typename T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = {});
  template <typename T>
  static Tensor scalar(T value, Device device = {}) {
    return from<T>({value}, Shape{}, device);
  }

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t numel() const { return defined() ? shape_.numel() : 0; }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_ ? storage_->device() : Device::cpu(); }

  // The elements. T must match the dtype. Reading gives a const pointer; mutable_data() is the only way to write, and
  // raises the storage's version: get the pointer anew for each write.
  template <typename T>
  const T* data() const {
    check_type(dtype_of<T>);
    return static_cast<const T*>(raw());
  }
  template <typename T>
  T* mutable_data() {
    check_type(dtype_of<T>);
    return static_cast<T*>(mutable_raw());
  }
  const void* raw() const;
  void* mutable_raw();
  uint64_t version() const { return storage_ ? storage_->version() : 0; }
  bool same_storage(const Tensor& other) const { return storage_ == other.storage_; }

  // Views: they share the elements. One extent of `shape` may be -1: it is inferred.
  Tensor reshape(const std::vector<int64_t>& shape) const;
  Tensor reshape(std::initializer_list<int64_t> shape) const { return reshape(std::vector<int64_t>(shape)); }
  Tensor reshape(const Shape& shape) const;
  Tensor flatten() const { return reshape(Shape{numel()}); }
  Tensor narrow(int64_t start, int64_t length) const;  // rows [start, start + length) of the first axis

  // Copies. to() gives the same tensor back when it is there already; clone() always copies.
  Tensor to(Device device) const;
  Tensor clone() const;
  void copy_from(const Tensor& source);  // same shape and dtype, any device
  void zero();
  template <typename T>
  std::vector<T> to_vector() const;  // waits for the device; throws what its kernels reported
  template <typename T>
  T item() const;  // the one element; likewise

 private:
  void check_type(DType asked) const;
  void copy_to_host(void* out) const;
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // in elements
  Shape shape_;
  DType dtype_ = DType::F32;
};

template <typename T>
Tensor Tensor::from(const std::vector<T>& values, const Shape& shape, Device device) {
  DEMI_CHECK(static_cast<int64_t>(values.size()) == shape.numel(), "[tensor] {} values do not fill shape {}",
             values.size(), shape);
  Tensor host = empty(shape, dtype_of<T>);
  std::copy(values.begin(), values.end(), host.mutable_data<T>());
  return host.to(device);
}

template <typename T>
std::vector<T> Tensor::to_vector() const {
  check_type(dtype_of<T>);
  std::vector<T> values(static_cast<size_t>(numel()));
  copy_to_host(values.data());
  return values;
}

template <typename T>
T Tensor::item() const {
  DEMI_CHECK(numel() == 1, "[item] needs a tensor of one element, not shape {}", shape_);
  return to_vector<T>()[0];
}

// Throws Error unless both live on one device; names the op and both devices.
void check_same_device(const char* op, const Tensor& a, const Tensor& b);

}  // namespace demi
