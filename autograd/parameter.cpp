#include "demi/autograd/parameter.h"

#include <algorithm>

#include "demi/autograd/observer.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/optimizer_step.h"

namespace demi {

Parameter::Parameter(const Tensor& master) : Variable(master, true) {
  state()->parameter = std::make_shared<ParameterState>(master);
  state()->data = {};  // the values live in the parameter's storage alone
}

void Parameter::to(Device device) {
  ParameterState& p = parameter();
  if (p.master().device() == device) return;
  DEMI_CHECK(!p.storage()->owned_by_optimizer,
             "[to] the parameters belong to an optimizer already: move the model before making it");
  p.move_to(std::make_shared<FlatStorage>(std::vector<Shape>{p.master().shape()}, device), 0);
}

Variable compute_copy(const Variable& v, DType dtype) {
  if (!is_16bit(dtype) || !v.defined() || !v.state()->parameter || !v.state()->requires_grad) return {};
  auto state = std::make_shared<VariableState>();
  state->parameter = v.state()->parameter;
  if (Observer* o = observer()) o->compute_copy(*state->parameter, dtype, state->parameter->storage()->fresh(dtype));
  state->data = state->parameter->compute(dtype);
  return Variable(std::move(state));
}

Buffer::Buffer(const Tensor& values) : state_(std::make_shared<State>()) {
  DEMI_CHECK(values.dtype() == DType::F32 || values.dtype() == DType::I64,
             "[buffer] is fp32, or int64 where it counts, not {}", values.dtype());
  state_->values = values;
}

void Buffer::assign(const Tensor& values) {
  DEMI_CHECK(values.shape() == state_->values.shape(), "[buffer] of shape {} given values of shape {}",
             state_->values.shape(), values.shape());
  const Tensor cast = kernels::cast(values, state_->values.dtype());
  state_->values.copy_from(cast);
  if (state_->shadow.defined()) state_->shadow.copy_from(cast);
}

void Buffer::to(Device device) {
  if (state_->values.device() == device) return;
  DEMI_CHECK(!state_->shadow.defined(),
             "[to] the buffers belong to an optimizer already: move the model before making it");
  state_->values = state_->values.to(device);
}

void ParameterList::append(const ParameterList& other) {
  parameters.insert(parameters.end(), other.parameters.begin(), other.parameters.end());
  buffers.insert(buffers.end(), other.buffers.begin(), other.buffers.end());
}

int64_t ParameterList::numel() const {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.master().numel();
  return n;
}

GuardedBuffers::GuardedBuffers(std::vector<Buffer> buffers) {
  std::erase_if(buffers, [](const Buffer& b) { return b.state_->shadow.defined(); });
  if (buffers.empty()) return;
  const memory::Scope scope(memory::Category::Weights);
  const Device device = buffers[0].tensor().device();
  for (const DType dtype : {DType::F32, DType::I64}) {
    int64_t total = 0;
    for (const Buffer& b : buffers) total += b.tensor().dtype() == dtype ? b.tensor().numel() : 0;
    if (total == 0) continue;
    Flat& flat = dtype == DType::F32 ? reals_ : counts_;
    flat = {Tensor::empty({total}, dtype, device), Tensor::empty({total}, dtype, device)};
    int64_t start = 0;
    for (Buffer& b : buffers) {
      if (b.tensor().dtype() != dtype) continue;
      const int64_t n = b.tensor().numel();
      Tensor live = flat.live.narrow(start, n).reshape(b.tensor().shape());
      live.copy_from(b.tensor());
      b.state_->values = live;
      b.state_->shadow = flat.shadow.narrow(start, n).reshape(live.shape());
      b.state_->shadow.copy_from(live);
      start += n;
    }
  }
  buffers_ = std::move(buffers);
}

GuardedBuffers::~GuardedBuffers() {
  for (Buffer& b : buffers_) b.state_->shadow = {};
}

void GuardedBuffers::commit_or_restore(const Tensor& skip) {
  kernels::commit_or_restore(skip, reals_.live, reals_.shadow, counts_.live, counts_.shadow);
}

}  // namespace demi
