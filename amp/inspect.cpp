#include "demi/amp/inspect.h"

#include <algorithm>
#include <string_view>

#include "demi/kernels/gradient.h"

namespace demi::amp {
namespace {

constexpr const char* kOutside = "(step)";

int64_t bytes_of_cast(const Tensor& from, const Tensor& to) { return static_cast<int64_t>(from.bytes() + to.bytes()); }

// What count_values() takes; FP64 is for checks on the CPU.
bool countable(const Tensor& x) { return x.defined() && (x.dtype() == DType::F32 || is_16bit(x.dtype())); }

void count(const Tensor& x, Tensor& counters, std::optional<DType>& dtype) {
  if (!countable(x)) return;
  if (!dtype) dtype = x.dtype();  // a weight's, where a bias has another
  if (!counters.defined()) counters = kernels::value_counters(x.device());
  kernels::count_values(x, counters);
}

}  // namespace

void Inspector::attach() {
  before_ = observer();
  set_observer(this);
}
Inspector::~Inspector() { set_observer(before_); }

void Inspector::reset() {
  events_.clear();
  row_of_.clear();
  rows_.clear();
  pending_ = {};
  pending_ids_.clear();
  events_placed_ = 0;
}

std::string Inspector::current_layer() const {
  for (auto it = scopes_.rbegin(); it != scopes_.rend(); ++it)
    if (const auto name = names_.find(*it); name != names_.end()) return name->second;
  return kOutside;
}

void Inspector::check(const Row* row, bool in_backward, std::string what, const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) return;
  Event& event =
      events_.emplace_back(Event{row, in_backward, std::move(what), Tensor::zeros({}, DType::I32, x.device())});
  kernels::check_finite(x, event.found);
}

void Inspector::compute_copy(const ParameterState&, DType, bool fresh) {
  ++(fresh ? pending_.copies_used : pending_.copies_made);
}

void Inspector::forward(const char* op, const std::vector<Variable>& inputs, const Tensor& y, uint64_t id) {
  if (std::string_view(op) == "cast") {
    ++pending_.casts;
    pending_.cast_bytes += bytes_of_cast(inputs[0].tensor(), y);
    if (id != 0) pending_ids_.push_back(id);
    return check(nullptr, false, "the cast of an input", y);
  }
  Row row;
  Operation& seen = row.seen;
  seen.op = op;
  seen.output = y.dtype();
  for (const Variable& v : inputs) {
    std::string& parameter = row.parameter_of_input.emplace_back();
    if (!v.defined()) continue;
    seen.inputs.push_back(v.dtype());
    const auto name = names_.find(v.state()->parameter.get());
    if (!v.state()->parameter || name == names_.end()) continue;
    // "layer1.0.conv1.weight" is the parameter "weight" of the layer "layer1.0.conv1".
    const size_t dot = name->second.rfind('.');
    parameter = name->second.substr(dot == std::string::npos ? 0 : dot + 1);
    if (seen.layer.empty()) seen.layer = dot == std::string::npos ? "(model)" : name->second.substr(0, dot);
  }
  if (seen.layer.empty()) seen.layer = current_layer();

  const auto same = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) {
    return r.seen.layer == seen.layer && r.seen.op == seen.op && r.seen.inputs == seen.inputs &&
           r.seen.output == seen.output && r.parameter_of_input == row.parameter_of_input;
  });
  Row& mine = same != rows_.end() ? *same : rows_.emplace_back(std::move(row));
  ++mine.seen.calls;
  mine.seen.casts += pending_.casts;
  mine.seen.cast_bytes += pending_.cast_bytes;
  mine.seen.copies_used += pending_.copies_used;
  mine.seen.copies_made += pending_.copies_made;
  pending_ = {};
  for (const uint64_t cast : pending_ids_) row_of_[cast] = &mine;
  pending_ids_.clear();
  if (id != 0) row_of_[id] = &mine;
  check(&mine, false, "the result", y);
  for (; events_placed_ < events_.size(); ++events_placed_)
    if (!events_[events_placed_].row) events_[events_placed_].row = &mine;
}

void Inspector::backward(const char* op, uint64_t id, const Tensor& dy, const std::vector<Tensor>& gradients) {
  const auto found = row_of_.find(id);
  if (found == row_of_.end()) return;  // recorded before this was attached, or before reset()
  Row& row = *found->second;
  if (std::string_view(op) == "cast") {
    ++row.seen.casts;
    row.seen.cast_bytes += bytes_of_cast(dy, gradients[0]);
    return check(&row, true, "the gradient's cast", gradients[0]);
  }
  count(dy, row.gradient, row.seen.gradient_dtype);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const std::string& parameter = row.parameter_of_input[i];
    check(&row, true, parameter.empty() ? fmt::format("the gradient of input {}", i) : "the gradient of " + parameter,
          gradients[i]);
    if (!parameter.empty()) count(gradients[i], row.weight_gradient, row.seen.weight_gradient_dtype);
  }
}

std::vector<Inspector::Operation> Inspector::operations() const {
  std::vector<Operation> all;
  for (const Row& row : rows_) {
    Operation& o = all.emplace_back(row.seen);
    if (row.gradient.defined()) o.gradient = kernels::read_counts(row.gradient);
    if (row.weight_gradient.defined()) o.weight_gradient = kernels::read_counts(row.weight_gradient);
  }
  return all;
}

std::optional<Inspector::NonFinite> Inspector::first_non_finite() const {
  for (const Event& e : events_)
    if (e.found.item<int32_t>() != 0)
      return NonFinite{e.row ? e.row->seen.layer : kOutside, e.row ? e.row->seen.op : "cast", e.in_backward, e.what};
  return std::nullopt;
}

}  // namespace demi::amp
