#include "op_replay.h"

#include <cmath>

#include "demi/kernels/cast.h"
#include "demi/kernels/permute.h"
#include "op_replay_case.h"

namespace demi::test {
namespace {

using Json = nlohmann::json;

std::string quoted_part(const char* part, const std::string& name) {
  const std::string_view p = part;
  return p == "grads" ? "gradient of " + name : p == "weights_after" ? name + " after the last step" : name;
}

Tensor to_host_layout(const Tensor& t, Layout layout) {
  const Tensor host = t.to(Device::cpu());
  return layout == Layout::ChannelsLast && host.rank() == 4 ? kernels::to_channels_first(host) : host;
}

}  // namespace

OpCaseFile read_op_cases(const std::filesystem::path& path) {
  OpCaseFile file{nn::read_safetensors(path), {}};
  const auto& metadata = file.content.metadata;
  const auto format = metadata.find("format"), cases = metadata.find("cases");
  DEMI_CHECK(format != metadata.end() && format->second == "demi-op-cases-1" && cases != metadata.end(),
             "{}: no op case file: its metadata has no format demi-op-cases-1 with cases", path.string());
  const Json list = Json::parse(cases->second, nullptr, false);
  DEMI_CHECK(list.is_array() && !list.empty(), "{}: its list of cases is empty or no list", path.string());
  for (const Json& c : list) {
    DEMI_CHECK(c.is_object() && c.contains("op") && c["op"].is_string(), "{}: case {} names no op", path.string(),
               file.cases.size());
    file.cases.push_back(c);
    if (!c.contains("name") || !c["name"].is_string())
      file.cases.back()["name"] = fmt::format("{}/{}", c["op"].get<std::string>(), file.cases.size() - 1);
  }
  return file;
}

Verdict replay(const OpCaseFile& file, const Json& c, Device device, DType dtype) {
  Verdict verdict{Verdict::Kind::Passed, c["name"].get<std::string>(), {}};
  const auto op = c["op"].get<std::string>();
  const OpReplay run = op_replay(op);
  if (!run) return {Verdict::Kind::Skipped, verdict.name, {"op '" + op + "' is not known"}};
  ReplayedCase running(file, c, device, dtype);
  try {
    run(running);
    synchronize(device);
    running.note_what_was_not_judged();
    verdict.notes = running.failures;
  } catch (const NotCovered& e) {
    return {Verdict::Kind::Skipped, verdict.name, {e.what()}};
  } catch (const std::exception& e) {  // an op that refused the case, or a case that is not what the format says
    verdict.notes = running.failures;
    verdict.notes.push_back(e.what());
  }
  if (!verdict.notes.empty()) verdict.kind = Verdict::Kind::Failed;
  return verdict;
}

std::array<int64_t, 2> ReplayedCase::pair(const char* name, std::array<int64_t, 2> otherwise) const {
  const auto v = attribute<std::vector<int64_t>>(name, {otherwise[0], otherwise[1]});
  if (v.empty()) return otherwise;
  return {v.front(), v.back()};
}

Tensor ReplayedCase::stored(const char* part, const std::string& name) const {
  const auto names = case_.find(part);
  if (names == case_.end() || !names->is_object()) return {};
  const auto it = names->find(name);
  if (it == names->end() || it->is_null()) return {};
  const auto tensor = file_.content.tensors.find(it->get<std::string>());
  DEMI_CHECK(tensor != file_.content.tensors.end(), "{}: the file has no tensor '{}'", name, it->get<std::string>());
  return tensor->second;
}

std::vector<std::string> ReplayedCase::names(const char* part) const {
  std::vector<std::string> all;
  if (case_.contains(part))
    for (const auto& [name, tensor] : case_[part].items()) all.push_back(name);
  return all;
}

Variable ReplayedCase::input(const std::string& name, Layout layout, DType dtype) {
  Tensor t = stored("inputs", name);
  if (!t.defined()) return {};
  if (layout == Layout::ChannelsLast && t.rank() == 4) t = kernels::to_channels_last(t);
  if (is_floating(t.dtype())) t = kernels::cast(t, dtype);
  const bool wants_grad = stored("grads", name).defined() && is_floating(t.dtype());
  const Variable v(t.to(device_), wants_grad);
  if (wants_grad) leaves_.push_back({name, layout, v});
  return v;
}

void ReplayedCase::finish(const Variable& y, Layout layout, const Limits& limits) {
  const double most = limit(limits);
  expect("outputs", "y", y.tensor(), layout, most);
  if (leaves_.empty()) return;
  const auto seed_name = case_.find("grad_output");
  DEMI_CHECK(seed_name != case_.end(), "gradients without a grad_output");
  const auto found = file_.content.tensors.find(seed_name->get<std::string>());
  DEMI_CHECK(found != file_.content.tensors.end(), "the file has no tensor '{}'", seed_name->get<std::string>());
  Tensor seed = found->second;
  if (layout == Layout::ChannelsLast && seed.rank() == 4) seed = kernels::to_channels_last(seed);
  backward(y, kernels::cast(seed, y.dtype()).to(device_));
  for (const Leaf& leaf : leaves_) {
    const Tensor gradient = leaf.variable.grad();
    if (gradient.defined()) expect("grads", leaf.name, gradient, leaf.layout, most);
  }
}

void ReplayedCase::expect(const char* part, const std::string& name, const Tensor& actual, Layout layout,
                          double limit) {
  const Tensor expected = stored(part, name);
  if (!expected.defined()) return;
  judged_.insert({part, name});
  const std::string scale_name = std::string_view(part) == "grads" ? "d" + name : name;
  double smallest = 0;
  if (const auto scales = case_.find("scales"); scales != case_.end() && scales->contains(scale_name))
    if (const auto& s = (*scales)[scale_name]; s.is_number()) smallest = s.get<double>();
  compare(quoted_part(part, name), to_host_layout(actual, layout), expected, smallest, false, limit);
}

void ReplayedCase::expect_norm(const char* part, const std::string& name, const Tensor& actual, Layout layout,
                               double limit) {
  const Tensor expected = stored(part, name);
  if (!expected.defined()) return;
  judged_.insert({part, name});
  compare(quoted_part(part, name), to_host_layout(actual, layout), expected, 0, true, limit);
}

void ReplayedCase::note_what_was_not_judged() {
  for (const char* part : {"outputs", "grads", "weights_after"})
    for (const std::string& name : names(part))
      if (!judged_.contains({part, name})) failures.push_back(quoted_part(part, name) + ": demi computed none");
  if (judged_.empty()) failures.push_back("the case gives no outputs, gradients or weights to judge by");
}

void ReplayedCase::compare(const std::string& what, const Tensor& actual, const Tensor& expected, double smallest_scale,
                           bool norm, double limit) {
  if (actual.shape() != expected.shape())
    return failures.push_back(fmt::format("{}: shape {}, expected {}", what, actual.shape(), expected.shape()));
  if (is_floating(actual.dtype()) != is_floating(expected.dtype()))
    return failures.push_back(fmt::format("{}: dtype {}, expected {}", what, actual.dtype(), expected.dtype()));
  const std::vector<double> got = kernels::cast(actual, DType::F64).to_vector<double>(),
                            want = kernels::cast(expected, DType::F64).to_vector<double>();
  double worst = 0, largest = 0, difference_squares = 0, squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = got[i], e = want[i];
    if (!std::isfinite(e) || !std::isfinite(a)) {
      if (a == e || (std::isnan(a) && std::isnan(e))) continue;
      return failures.push_back(fmt::format("{}: element {} is {}, expected {}, limit {:.1e}", what, i, a, e, limit));
    }
    worst = std::max(worst, std::fabs(a - e));
    largest = std::max(largest, std::fabs(e));
    difference_squares += (a - e) * (a - e);
    squares += e * e;
  }
  const double error = norm ? std::sqrt(difference_squares) / std::max(std::sqrt(squares), 1e-30)
                            : worst / std::max({largest, smallest_scale, 1e-30});
  if (!(error <= limit)) failures.push_back(fmt::format("{}: error {:.3e}, limit {:.1e}", what, error, limit));
}

}  // namespace demi::test
