#include "scaler_traces.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "demi/autograd/engine.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/optim/clip.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

namespace demi::test {
namespace {

using Json = nlohmann::json;

// A value of the file and where it stands, for errors.
class Place {
 public:
  Place(const Json& value, std::string where) : value_(value), where_(std::move(where)) {}

  Place operator[](const char* key) const {
    expect(value_.is_object(), "an object");
    DEMI_CHECK(value_.contains(key), "{} has no '{}'", where_, key);
    return {value_.at(key), fmt::format("{}, '{}'", where_, key)};
  }
  Place operator[](size_t i) const { return {value_.at(i), fmt::format("{}[{}]", where_, i)}; }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  bool is_null() const { return value_.is_null(); }
  size_t size() const {
    expect(value_.is_array(), "a list");
    return value_.size();
  }

  double number() const {
    if (value_ == "inf") return std::numeric_limits<double>::infinity();
    if (value_ == "-inf") return -std::numeric_limits<double>::infinity();
    if (value_ == "nan") return std::numeric_limits<double>::quiet_NaN();
    expect(value_.is_number(), R"(a number, "inf", "-inf" or "nan")");
    return value_.get<double>();
  }
  int whole() const {
    const double v = number();
    expect(v == std::floor(v) && std::fabs(v) <= std::numeric_limits<int>::max(), "a whole number");
    return static_cast<int>(v);
  }
  bool boolean() const {
    expect(value_.is_boolean(), "true or false");
    return value_.get<bool>();
  }
  std::optional<double> number_or_null() const { return is_null() ? std::nullopt : std::optional(number()); }
  std::optional<bool> boolean_or_null() const { return is_null() ? std::nullopt : std::optional(boolean()); }

  // The items of a list of n.
  template <typename T>
  std::vector<T> list(size_t n, T (Place::*item)() const) const {
    DEMI_CHECK(size() == n, "{} has {} items for {} optimizers", where_, size(), n);
    std::vector<T> items;
    for (size_t i = 0; i < n; ++i) items.push_back(((*this)[i].*item)());
    return items;
  }
  void expect_items() const { DEMI_CHECK(size() > 0, "{} is empty", where_); }

 private:
  void expect(bool is, const char* what) const {
    DEMI_CHECK(is, "{} is {}, not {}", where_, what,
               value_.is_structured() ? value_.type_name() : value_.dump(-1, ' ', true));
  }
  const Json& value_;
  std::string where_;
};

ScalerTrace parse_trace(const Place& place) {
  ScalerTrace trace;
  const Place config = place["config"], optimizers = place["optimizers"], steps = place["steps"];
  trace.config = {.init_scale = config["init_scale"].number(),
                  .growth_factor = config["growth_factor"].number(),
                  .backoff_factor = config["backoff_factor"].number(),
                  .growth_interval = config["growth_interval"].whole(),
                  .max_consecutive_overflows = 0};  // PyTorch never gives up
  optimizers.expect_items();
  steps.expect_items();
  const size_t n = optimizers.size();
  for (size_t j = 0; j < n; ++j) {
    const Place o = optimizers[j];
    const auto optional = [&](const char* key) { return o.has(key) ? o[key].number() : 0.0; };
    trace.optimizers.push_back({.lr = o["lr"].number(),
                                .momentum = optional("momentum"),
                                .dampening = optional("dampening"),
                                .weight_decay = optional("weight_decay")});
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const Place s = steps[i];
    trace.steps.push_back({.grads = s["grads"].list(n, &Place::number_or_null),
                           .unscale = s["unscale"].list(n, &Place::boolean),
                           .clip = s["clip"].number_or_null(),
                           .new_scale = s["new_scale"].number_or_null(),
                           .scale = s["scale"].number(),
                           .tracker = s["tracker"].whole(),
                           .weights = s["weights"].list(n, &Place::number),
                           .stepped = s["stepped"].list(n, &Place::boolean_or_null)});
  }
  return trace;
}

// What decides which kernels a step launches; gradients are read from buffers.
struct Recipe {
  explicit Recipe(const ScalerTrace::Step& step) : unscale(step.unscale), clip(step.clip), new_scale(step.new_scale) {
    for (const auto& g : step.grads) present.push_back(g.has_value());
  }
  bool operator==(const Recipe&) const = default;

  std::vector<bool> present, unscale;
  std::optional<double> clip, new_scale;
};

using Outcomes = std::vector<std::optional<optim::StepOutcome>>;  // none where there was no gradient

class Replay {
 public:
  Replay(const ScalerTrace& trace, Device device) : scaler_(trace.config) {
    for (const optim::SGDOptions& options : trace.optimizers) {
      weights_.emplace_back(Tensor::scalar(1.0f, device));
      gradients_.push_back(Tensor::scalar(0.0f, device));
      optimizers_.push_back(std::make_unique<optim::SGD>(std::vector{weights_.back()}, options));
    }
    seen_.assign(weights_.size(), false);
  }

  const Outcomes& take(const ScalerTrace::Step& step, ReplayBy by) {
    for (size_t j = 0; j < weights_.size(); ++j)
      if (step.grads[j]) gradients_[j].copy_from(Tensor::scalar(static_cast<float>(*step.grads[j])));
    const Recipe recipe(step);
    bool all_seen = true;
    for (size_t j = 0; j < weights_.size(); ++j)
      if (recipe.present[j] && !seen_[j]) {
        all_seen = false;
        seen_[j] = true;
      }
    if (by == ReplayBy::Eager || !all_seen) {
      outcomes_ = run(recipe);
      return outcomes_;
    }
#if DEMI_CUDA
    auto kind = std::find_if(captured_.begin(), captured_.end(), [&](const auto& c) { return c->recipe == recipe; });
    if (kind == captured_.end()) kind = captured_.insert(kind, std::make_unique<Captured>(*this, recipe));
    (*kind)->graph.replay();
    return (*kind)->outcomes;
#else
    fail("[replay] this build has no CUDA graphs");
#endif
  }

  // The first field that is not as recorded, with both values; "" when all are.
  std::string difference(const ScalerTrace::Step& step, const Outcomes& outcomes, double limit) const {
    const auto text = [](std::optional<bool> v) { return !v ? "null" : *v ? "true" : "false"; };
    for (size_t j = 0; j < weights_.size(); ++j) {
      std::optional<bool> stepped;
      if (outcomes[j]) stepped = !outcomes[j]->skipped();
      if (stepped != step.stepped[j])
        return fmt::format("stepped[{}]: {} here, {} recorded", j, text(stepped), text(step.stepped[j]));
    }
    const double scale = scaler_.get_scale();
    if (scale != step.scale) return fmt::format("scale: {} here, {} recorded", scale, step.scale);
    const int tracker = scaler_.growth_tracker();
    if (tracker != step.tracker) return fmt::format("tracker: {} here, {} recorded", tracker, step.tracker);
    for (size_t j = 0; j < weights_.size(); ++j) {
      const double w = static_cast<double>(weights_[j].master().item<float>()), recorded = step.weights[j];
      const bool equal =
          w == recorded || (std::isnan(w) && std::isnan(recorded)) ||
          (std::isfinite(recorded) && std::fabs(w - recorded) <= limit * std::max(1.0, std::fabs(recorded)));
      if (!equal) return fmt::format("weights[{}]: {} here, {} recorded", j, w, recorded);
    }
    return "";
  }

 private:
  Outcomes run(const Recipe& recipe) {
    Variable loss;
    for (size_t j = 0; j < weights_.size(); ++j) {
      optimizers_[j]->zero_grad();
      if (!recipe.present[j]) continue;
      const Variable term = mul(weights_[j], gradients_[j]);
      loss = loss.defined() ? add(loss, term) : term;
    }
    if (loss.defined()) backward(scaler_.scale(loss));
    Outcomes outcomes(weights_.size());
    for (size_t j = 0; j < weights_.size(); ++j) {
      if (!recipe.present[j]) continue;
      if (recipe.unscale[j]) {
        scaler_.unscale(*optimizers_[j]);
        if (recipe.clip) optim::clip_grad_norm(*optimizers_[j], *recipe.clip);
      }
      outcomes[j] = scaler_.step(*optimizers_[j]);
    }
    recipe.new_scale ? scaler_.update(*recipe.new_scale) : scaler_.update();
    return outcomes;
  }

  amp::GradScaler scaler_;
  std::vector<Parameter> weights_;
  std::vector<Tensor> gradients_;  // constants of the loss, so the gradients of the weights
  std::vector<std::unique_ptr<optim::SGD>> optimizers_;
  std::vector<bool> seen_;  // has had a gradient
  Outcomes outcomes_;       // of the last eager step
#if DEMI_CUDA
  struct Captured {
    Captured(Replay& replay, const Recipe& kind)
        : recipe(kind), graph([&] { outcomes = replay.run(recipe); }, 0, replay.gradients_[0].device()) {}
    Recipe recipe;
    Outcomes outcomes;  // every replay writes them anew
    cuda::Graph graph;
  };
  std::vector<std::unique_ptr<Captured>> captured_;
#endif
};

}  // namespace

std::vector<ScalerTrace> parse_scaler_traces(const std::string& text, const std::string& name) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& e) {
    fail("{}: no JSON: byte {} is not what JSON has there", name, e.byte);
  } catch (const Json::exception&) {
    fail("{}: no JSON: a number is too large", name);
  }
  const Place traces = Place(json, name)["traces"];
  traces.expect_items();
  std::vector<ScalerTrace> all;
  for (size_t t = 0; t < traces.size(); ++t) all.push_back(parse_trace(traces[t]));
  return all;
}

std::vector<ScalerTrace> read_scaler_traces(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  DEMI_CHECK(in && !std::filesystem::is_directory(path), "{}: no such file, or not readable", path.string());
  return parse_scaler_traces({std::istreambuf_iterator<char>(in), {}}, path.string());
}

std::string replay(const ScalerTrace& trace, Device device, ReplayBy by, double limit) {
  DEMI_CHECK(by == ReplayBy::Eager || device.is_cuda(), "graphs need a CUDA device, not {}", device);
  size_t i = 0;
  try {
    Replay replay(trace, device);
    for (; i < trace.steps.size(); ++i) {
      const ScalerTrace::Step& step = trace.steps[i];
      const std::string difference = replay.difference(step, replay.take(step, by), limit);
      if (!difference.empty()) return fmt::format("step {}, {}", i, difference);
    }
  } catch (const Error& e) {  // what demi refuses and PyTorch did
    return fmt::format("step {}, error: {}", i, e.what());
  }
  return "";
}

}  // namespace demi::test
