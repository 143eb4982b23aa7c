// dynamic_scale: How does the loss scale find its value, and what does a skipped step leave behind?
//
// Predictions:
//   Gradients overflow, and the step is skipped, exactly when the scale is above the batch's limit: the power of two
//   that brings the batch's largest FP16 gradient to between 2^15 and 2^16. From 2^40 the scale comes down to there,
//   one halving a skip.
//   Each doubling takes growth_interval good steps and is undone by one skip, so about one step in growth_interval + 1
//   is lost. Batches of 2 have larger gradients, and so a lower limit, than batches of 128.
//   A fixed scale that is too large skips every step; one that is too small skips none and trains nothing either.
//   A skipped step changes no bit of weights, momentum, FP16 copies or batch norm's statistics.
#include <cmath>
#include <numeric>

#include "demi/examples/amp_lessons/lesson.h"
#include "demi/examples/amp_lessons/small_net.h"

namespace demi::lessons {
namespace {

struct Training {
  SmallNet net;
  std::unique_ptr<optim::SGD> sgd;
  amp::GradScaler scaler;
  std::optional<double> fixed;                 // a scale that never changes
  std::vector<double> scales, limits, losses;  // one a step
  std::vector<bool> overflowed, skipped;

  Training(Lesson& lesson, const amp::GradScalerOptions& options) : scaler(options) {
    manual_seed(lesson.seed());
    net.to(lesson.device());
    sgd = std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  }
  Variable loss(const data::Batch& batch) {
    const amp::Autocast region(DType::F16);
    return nn::cross_entropy(net(batch.images), batch.labels);
  }
  bool step(const data::Batch& batch) {  // whether it was taken
    scales.push_back(scaler.get_scale());
    sgd->zero_grad();
    const Variable l = loss(batch);
    losses.push_back(l.item<float>());
    backward(scaler.scale(l));
    overflowed.push_back(!std::isfinite(optim::grad_norm(*sgd).item<float>()));
    skipped.push_back(scaler.step(*sgd).skipped());
    fixed ? scaler.update(*fixed) : scaler.update();
    return !skipped.back();
  }
  void measure_limit(const data::Batch& batch) {
    const amp::Inspector inspector(net);
    sgd->zero_grad();
    backward(loss(batch) * 4096.0);  // any power of two that fits: it changes no digit
    limits.push_back(4096 * std::exp2(15 - highest_exponent(inspector, DType::F16)));
  }
  auto skips() const { return std::count(skipped.begin(), skipped.end(), true); }
};

std::string power(double x) { return fmt::format("2^{:.0f}", std::log2(x)); }
}  // namespace

void dynamic_scale(Lesson& lesson) {
  data::Source set = lesson.open_data();
  const auto train = [&](Training& t, int64_t size, size_t steps, bool measure) {
    for (int64_t epoch = 0; t.scales.size() < steps; ++epoch)
      for (const data::Batch& batch : set.train({.batch = size, .epoch = epoch}, lesson.device())) {
        if (t.scales.size() == steps) break;
        if (measure) t.measure_limit(batch);
        t.step(batch);
      }
  };

  lesson.section("From 2^40 to a scale that fits");
  Training t(lesson, {.init_scale = 0x1p40, .growth_interval = 20});
  train(t, 32, 120, true);
  Table life({"step", "scale", "its batch's limit", "gradients", "the step is", "next scale"});
  bool as_predicted = true;
  for (size_t i = 0; i < t.scales.size(); ++i) {
    as_predicted &= t.skipped[i] == (t.scales[i] > t.limits[i]) && t.skipped[i] == t.overflowed[i];
    const double next = i + 1 < t.scales.size() ? t.scales[i + 1] : t.scaler.get_scale();
    as_predicted &= !t.skipped[i] || next == t.scales[i] / 2;
    if (i > 2 && t.skipped[i] == t.skipped[i - 1] && (t.skipped[i] || t.scales[i] == next)) continue;
    life.row(i + 1, power(t.scales[i]), power(t.limits[i]), t.overflowed[i] ? "overflow" : "finite",
             t.skipped[i] ? "skipped" : "taken", power(next));
  }
  lesson.show(life);
  lesson.say("(Not shown: a step that is skipped as the one before it was, or taken and leaves the scale.)");
  lesson.predict(
      "gradients overflow exactly when the scale is above the batch's limit, and exactly then the step is skipped",
      as_predicted);
  std::vector<double> x(t.scales.size());
  std::iota(x.begin(), x.end(), 1);
  Chart chart{.title = "A loss scale finds its limit", .x_label = "step", .y_label = "scale", .log2_y = true};
  chart.series = {{"loss scale", x, t.scales}, {"limit of the batch", x, t.limits, 1, true}};
  lesson.save("dynamic_scale", chart);

  lesson.section("What growth_interval and the batch do, 140 steps from 2^16");
  Table intervals({"batch", "growth_interval", "mean log2 limit", "last log2 scale", "skipped", "1 / (interval + 1)"});
  std::map<int64_t, double> mean;
  bool bounded = true;
  for (const int64_t size : {2, 16, 128})
    for (const int interval : {5, 20, 2000}) {
      Training u(lesson, {.growth_interval = interval});
      train(u, size, 140, true);
      mean[size] = std::log2(std::accumulate(u.limits.begin(), u.limits.end(), 0.0) / 140);
      bounded &= u.skips() <= 140 / (interval + 1) + 2;  // 2: where the limit itself falls, a skip needs no doubling
      intervals.row(size, interval, fmt::format("{:.1f}", mean[size]), std::log2(u.scales.back()),
                    fmt::format("{:.1f} %", u.skips() / 1.4), fmt::format("{:.1f} %", 100.0 / (interval + 1)));
    }
  lesson.show(intervals);
  lesson.predict("no more than about one step in growth_interval + 1 is lost", bounded);
  lesson.predict("batches of 2 have a lower limit than batches of 128", mean[2] < mean[128]);

  lesson.section("A scale that never changes, 60 steps");
  Table fixed({"scale", "skipped", "weights that moved", "first loss", "last 10"});
  bool dead = true;
  for (const int e : {-24, -16, -8, 0, 8, 16, 24}) {
    Training u(lesson, {.init_scale = std::exp2(e)});
    u.fixed = std::exp2(e);
    const State before = state_of(u.net, *u.sgd);
    train(u, 64, 60, false);
    const int moved = changed(before, state_of(u.net, *u.sgd), "weights");
    fixed.row(power(std::exp2(e)), u.skips(), fmt::format("{} of 7", moved), fmt::format("{:.3f}", u.losses[0]),
              fmt::format("{:.3f}", std::accumulate(u.losses.end() - 10, u.losses.end(), 0.0) / 10));
    dead &= std::abs(e) < 24 || (moved == 0 && u.skips() == (e < 0 ? 0 : 60));
  }
  lesson.show(fixed);
  lesson.predict("at 2^24 every step is skipped, at 2^-24 none, and no weight moves at either", dead);

  lesson.section("A skipped step, bit for bit");
  Training u(lesson, {});
  train(u, 32, 10, false);
  const data::Batch batch = set.train({.batch = 32, .epoch = 9}, lesson.device()).at(0);
  const State before = state_of(u.net, *u.sgd);
  u.scaler.update(0x1p40);  // far too large
  bool holds = !u.step(batch);
  const State after_skip = state_of(u.net, *u.sgd);
  u.scaler.update(65536);
  holds &= u.step(batch);
  const State after_step = state_of(u.net, *u.sgd);
  Table bits({"tensors that differ", "after a skipped step", "after the next"});
  for (const std::string kind : {"weights", "FP16 copies", "momentum", "batch norm's statistics"}) {
    const int by_skip = changed(before, after_skip, kind), by_step = changed(after_skip, after_step, kind);
    bits.row(kind, by_skip, by_step);
    holds &= by_skip == 0 && by_step > 0;
  }
  lesson.show(bits);
  lesson.predict("a skipped step changes no bit of them, the next one all kinds", holds);
}

}  // namespace demi::lessons
