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
  DEMI_CHECK(values.dtype() == DType::F32, "[buffer] is fp32, not {}", values.dtype());
  state_->values = values;
}

void Buffer::assign(const Tensor& values) {
  DEMI_CHECK(values.shape() == state_->values.shape(), "[buffer] of shape {} given values of shape {}",
             state_->values.shape(), values.shape());
  const Tensor wide = kernels::cast(values, DType::F32);
  state_->values.copy_from(wide);
  if (state_->shadow.defined()) state_->shadow.copy_from(wide);
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
  std::vector<Shape> shapes;
  for (const Buffer& b : buffers) shapes.push_back(b.tensor().shape());
  int64_t total = 0;
  for (const Shape& s : shapes) total += s.numel();
  const memory::Scope scope(memory::Category::Weights);
  live_ = Tensor::empty({total}, DType::F32, buffers[0].tensor().device());
  shadow_ = Tensor::empty({total}, DType::F32, live_.device());
  int64_t start = 0;
  for (Buffer& b : buffers) {
    const int64_t n = b.tensor().numel();
    Tensor live = live_.narrow(start, n).reshape(b.tensor().shape());
    live.copy_from(b.tensor());
    b.state_->values = live;
    b.state_->shadow = shadow_.narrow(start, n).reshape(live.shape());
    b.state_->shadow.copy_from(live);
    start += n;
  }
  buffers_ = std::move(buffers);
}

GuardedBuffers::~GuardedBuffers() {
  for (Buffer& b : buffers_) b.state_->shadow = {};
}

void GuardedBuffers::commit_or_restore(const Tensor& skip) {
  if (live_.defined()) kernels::commit_or_restore(skip, live_, shadow_);
}

}  // namespace demi
