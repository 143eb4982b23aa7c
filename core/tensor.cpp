#include "demi/core/tensor.h"

#include <cstring>

#include "demi/core/backend.h"

namespace demi {
namespace {
// A product that wrapped around would allocate too little.
size_t bytes_of(const Shape& shape, DType dtype) {
  auto bytes = static_cast<int64_t>(size_of(dtype));
  for (const int64_t extent : shape)
    DEMI_CHECK(!__builtin_mul_overflow(bytes, extent, &bytes), "[tensor] {} {} has more bytes than there are", dtype,
               shape);
  return static_cast<size_t>(bytes);
}
}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  Tensor t;
  t.shape_ = shape;
  t.dtype_ = dtype;
  t.storage_ = std::make_shared<Storage>(bytes_of(shape, dtype), device);
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  t.zero();
  return t;
}

const void* Tensor::raw() const {
  if (!storage_ || !storage_->data()) return nullptr;
  return static_cast<const char*>(storage_->data()) + static_cast<size_t>(offset_) * size_of(dtype_);
}

void* Tensor::mutable_raw() {
  if (storage_) storage_->raise_version();
  return const_cast<void*>(raw());
}

void Tensor::check_type(DType asked) const {
  DEMI_CHECK(defined(), "[tensor] undefined: it was never given a value");
  DEMI_CHECK(asked == dtype_, "[tensor] holds {}, read as {}", dtype_, asked);
}

Tensor Tensor::reshape(const Shape& shape) const {
  DEMI_CHECK(shape.numel() == numel(), "[reshape] shape {} does not hold the {} elements of {}", shape, numel(),
             shape_);
  Tensor t = *this;
  t.shape_ = shape;
  return t;
}

Tensor Tensor::reshape(const std::vector<int64_t>& dims) const {
  std::vector<int64_t> full = dims;
  int64_t known = 1;
  int64_t* unknown = nullptr;
  for (int64_t& extent : full) {
    if (extent != -1) {
      known *= extent;
      continue;
    }
    DEMI_CHECK(!unknown, "[reshape] only one extent may be -1");
    unknown = &extent;
  }
  if (unknown) {
    DEMI_CHECK(known > 0 && numel() % known == 0, "[reshape] {} elements of {} do not divide by {}", numel(), shape_,
               known);
    *unknown = numel() / known;
  }
  return reshape(Shape(full));
}

Tensor Tensor::narrow(int64_t start, int64_t length) const {
  DEMI_CHECK(rank() > 0 && start >= 0 && length >= 0 && start + length <= size(0),
             "[narrow] rows {} to {} are outside shape {}", start, start + length, shape_);
  Tensor t = *this;
  t.shape_.set(0, length);
  t.offset_ += start * (size(0) > 0 ? numel() / size(0) : 0);
  return t;
}

Tensor Tensor::to(Device device) const {
  if (!defined() || device == this->device()) return *this;
  Tensor t = empty(shape_, dtype_, device);
  t.copy_from(*this);
  return t;
}

Tensor Tensor::clone() const {
  if (!defined()) return {};
  Tensor t = empty(shape_, dtype_, device());
  t.copy_from(*this);
  return t;
}

void Tensor::copy_from(const Tensor& source) {
  DEMI_CHECK(defined() && source.defined(), "[copy] of an undefined tensor");
  DEMI_CHECK(shape_ == source.shape_, "[copy] from shape {} into {}", source.shape_, shape_);
  DEMI_CHECK(dtype_ == source.dtype_, "[copy] from {} into {}: cast first", source.dtype_, dtype_);
  if (bytes() == 0) return;
  void* to = mutable_raw();
  const Device there = device(), here = source.device();
  if (there.is_cpu() && here.is_cpu())
    std::memmove(to, source.raw(), bytes());
  else if (here.is_cpu())
    backend::copy_to_device(there.index(), to, source.raw(), bytes());
  else if (there.is_cpu())
    backend::copy_to_host(here.index(), to, source.raw(), bytes());
  else if (there == here)
    backend::copy_on_device(there.index(), to, source.raw(), bytes());
  else
    backend::copy_between_devices(there.index(), to, here.index(), source.raw(), bytes());
}

void Tensor::copy_to_host(void* out) const {
  if (bytes() == 0) return;
  if (device().is_cpu())
    std::memcpy(out, raw(), bytes());
  else
    backend::copy_to_host(device().index(), out, raw(), bytes());
}

void Tensor::zero() {
  if (bytes() == 0) return;
  void* to = mutable_raw();
  if (device().is_cpu())
    std::memset(to, 0, bytes());
  else
    backend::fill_zero(device().index(), to, bytes());
}

void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  DEMI_CHECK(a.defined() && b.defined(), "[{}] of an undefined tensor", op);
  DEMI_CHECK(a.device() == b.device(), "[{}] tensors on {} and {}: move one with to()", op, a.device(), b.device());
}

}  // namespace demi
