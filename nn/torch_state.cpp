#include "demi/nn/torch_state.h"

#include <algorithm>

#include "demi/kernels/permute.h"

namespace demi::nn {
namespace {

constexpr std::string_view kDataParallel = "module.", kCount = "num_batches_tracked";

Shape torch_shape(const Parameter& p) {
  const Shape& s = p.shape();
  return p.parameter().channels > 0 && s.rank() == 4 ? Shape{s[0], s[3], s[1], s[2]} : s;
}

// The channels C of [K, positions, C] change places with the positions, in either direction.
Tensor to_torch_layout(const Parameter& p) {
  const Tensor t = p.master().to(Device::cpu());
  const int64_t channels = p.parameter().channels;
  if (channels == 0) return t.same_storage(p.master()) ? t.clone() : t;
  return kernels::permute(t.reshape({t.size(0), -1, channels}), {0, 2, 1}).reshape(torch_shape(p));
}
Tensor from_torch_layout(const Parameter& p, const Tensor& t) {
  const int64_t channels = p.parameter().channels;
  if (channels == 0) return t;
  return kernels::permute(t.reshape({t.size(0), channels, -1}), {0, 2, 1}).reshape(p.shape());
}

bool may_be_missing(const std::string& name) { return name == kCount || name.ends_with("." + std::string(kCount)); }

// The names without DataParallel's prefix, where all have it and the model does not.
StateDict without_prefix(const StateDict& tensors, const std::string& a_name_of_the_model) {
  const auto wrapped = [](const auto& entry) { return entry.first.starts_with(kDataParallel); };
  if (tensors.contains(a_name_of_the_model) || !std::all_of(tensors.begin(), tensors.end(), wrapped)) return tensors;
  StateDict plain;
  for (const auto& [name, t] : tensors) plain[name.substr(kDataParallel.size())] = t;
  return plain;
}

}  // namespace

StateDict to_torch(const Module& model) {
  StateDict all;
  for (const auto& [name, p] : model.named_parameters()) all[name] = to_torch_layout(p);
  for (const auto& [name, b] : model.named_buffers()) {
    const Tensor t = b.tensor().to(Device::cpu());
    all[name] = t.same_storage(b.tensor()) ? t.clone() : t;
  }
  return all;
}

void load_torch(Module& model, const StateDict& tensors) {
  auto parameters = model.named_parameters();
  auto buffers = model.named_buffers();
  struct Expected {
    std::string name;
    Shape shape;
    bool reals;
  };
  std::vector<Expected> mine;
  for (const auto& [name, p] : parameters) mine.push_back({name, torch_shape(p), true});
  for (const auto& [name, b] : buffers) mine.push_back({name, b.tensor().shape(), is_floating(b.tensor().dtype())});
  const StateDict given = without_prefix(tensors, mine.empty() ? "" : mine.front().name);

  std::map<std::string, bool> known;
  for (const Expected& e : mine) {
    known[e.name] = true;
    const auto it = given.find(e.name);
    if (it == given.end() && may_be_missing(e.name)) continue;
    DEMI_CHECK(it != given.end(), "[load] '{}', {} in this model, is missing: the weights are of another model", e.name,
               e.shape);
    DEMI_CHECK(it->second.shape() == e.shape,
               "[load] '{}' has shape {}, this model's is {}: the weights are of another model", e.name,
               it->second.shape(), e.shape);
    DEMI_CHECK(is_floating(it->second.dtype()) == e.reals, "[load] '{}' holds {}, not {}", e.name, it->second.dtype(),
               e.reals ? "reals" : "a count");
  }
  for (const auto& [name, t] : given)
    DEMI_CHECK(known.contains(name), "[load] this model has no '{}', {} in the weights: they are of another model",
               name, t.shape());

  for (auto& [name, p] : parameters) p.assign(from_torch_layout(p, given.at(name).to(Device::cpu())));
  for (auto& [name, b] : buffers) {
    const auto it = given.find(name);
    b.assign(it != given.end() ? it->second : Tensor::zeros(b.tensor().shape(), b.tensor().dtype()));
  }
}

}  // namespace demi::nn
