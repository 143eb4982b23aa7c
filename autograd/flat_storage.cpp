#include "demi/autograd/flat_storage.h"

#include "demi/core/backend.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/scale.h"

namespace demi {

FlatStorage::FlatStorage(const std::vector<Shape>& shapes, Device device) {
  for (const Shape& shape : shapes) {
    slices_.push_back({shape, numel_});
    numel_ += (shape.numel() + kAlignment - 1) / kAlignment * kAlignment;
  }
  const memory::Scope scope(memory::Category::Weights);
  master_ = Tensor::zeros({numel_}, DType::F32, device);
}

size_t FlatStorage::slot(DType dtype) {
  DEMI_CHECK(dtype == DType::F32 || is_16bit(dtype), "[parameter] gradients and copies are fp32, fp16 or bf16, not {}",
             dtype);
  return static_cast<size_t>(dtype);
}

Tensor& FlatStorage::gradient(DType dtype) {
  Tensor& g = gradients_[slot(dtype)];
  if (!g.defined()) {
    const memory::Scope scope(memory::Category::Gradients);
    g = Tensor::zeros({numel_}, dtype, device());
  }
  return g;
}

const Tensor& FlatStorage::copy(DType dtype) {
  Copy& c = copies_[slot(dtype)];
  // A replay of what is being captured will read this copy: it must look first, as this call does.
  if (backend::capturing_graph())
    backend::around_replays(
        &c,
        [weak = weak_from_this(), dtype] {
          const auto self = weak.lock();
          DEMI_CHECK(self, "[graph] the parameters that this graph was captured with are gone or moved: capture again");
          (void)self->copy(dtype);
        },
        nullptr);
  DEMI_CHECK(fresh(dtype) || !backend::capturing_graph(),
             "[graph] the {} compute copies are not there yet: run the step once before it is captured", dtype);
  if (fresh(dtype)) return c.values;
  if (!c.values.defined()) {
    const memory::Scope scope(memory::Category::ComputeCopies);
    c.values = Tensor::empty({numel_}, dtype, device());
  }
  kernels::cast_into(master_, c.values);
  c.master_version = master_.version();
  return c.values;
}

bool FlatStorage::fresh(DType dtype) const {
  const Copy& c = copies_[slot(dtype)];
  return c.values.defined() && c.master_version == master_.version();
}

bool FlatStorage::copies_fresh() const {
  for (const Copy& c : copies_)
    if (c.values.defined() && c.master_version != master_.version()) return false;
  return true;
}

void FlatStorage::copies_written() {
  for (Copy& c : copies_) c.master_version = master_.version();
}

void FlatStorage::follow_replays() {
  std::vector<DType> written;
  for (const DType dtype : {DType::F16, DType::BF16})
    if (fresh(dtype)) written.push_back(dtype);
  backend::around_replays(this, nullptr, [weak = weak_from_this(), written] {
    const auto self = weak.lock();
    if (!self) return;                  // found before the next launch
    (void)self->master_.mutable_raw();  // raises the version, which the device's writes do not
    for (const DType dtype : written) self->copies_[slot(dtype)].master_version = self->master_.version();
  });
}

Tensor FlatStorage::view(const Tensor& flat, size_t slice) const {
  const Slice& s = slices_[slice];
  return flat.narrow(s.start, s.shape.numel()).reshape(s.shape);
}

ParameterState::ParameterState(const Tensor& master) {
  DEMI_CHECK(master.dtype() == DType::F32, "[parameter] the master is fp32, not {}", master.dtype());
  master_ = master;
  move_to(std::make_shared<FlatStorage>(std::vector<Shape>{master.shape()}, master.device()), 0);
}

void ParameterState::move_to(std::shared_ptr<FlatStorage> storage, size_t slice) {
  Tensor there = storage->view(storage->master(), slice);
  there.copy_from(master_);
  master_ = there;
  computes_ = {};
  storage_ = std::move(storage);
  slice_ = slice;
  has_grad_ = false;
}

const Tensor& ParameterState::compute(DType dtype) {
  if (dtype == DType::F32) return master_;
  const Tensor& flat = storage_->copy(dtype);
  Tensor& mine = computes_[static_cast<size_t>(dtype)];
  if (!mine.defined()) mine = storage_->view(flat, slice_);
  return mine;
}

void ParameterState::assign(const Tensor& values) {
  DEMI_CHECK(values.shape() == master_.shape(), "[parameter] of shape {} given values of shape {}", master_.shape(),
             values.shape());
  master_.copy_from(kernels::cast(values, DType::F32));
}

Tensor ParameterState::grad() const {
  return has_grad_ ? storage_->view(storage_->gradient(grad_dtype_), slice_) : Tensor{};
}

Tensor ParameterState::gradient_slice(DType dtype) { return storage_->view(storage_->gradient(dtype), slice_); }

void ParameterState::accumulate(const Tensor& gradient) {
  if (!trainable) return;
  DEMI_CHECK(gradient.shape() == master_.shape(), "[backward] gradient of shape {} for a parameter of shape {}",
             gradient.shape(), master_.shape());
  if (has_grad_) {
    promote_grad();
    Tensor sum = gradient_slice(DType::F32);
    kernels::axpy(1.0, gradient, sum);
    return;
  }
  Tensor slice = gradient_slice(gradient.dtype());
  if (slice.raw() != gradient.raw()) slice.copy_from(gradient);  // else backward wrote it in place
  grad_dtype_ = gradient.dtype();
  has_grad_ = true;
}

void ParameterState::promote_grad() {
  if (!has_grad_ || grad_dtype_ == DType::F32) return;
  Tensor wide = gradient_slice(DType::F32);
  kernels::cast_into(gradient_slice(grad_dtype_), wide);
  grad_dtype_ = DType::F32;
}

}  // namespace demi
