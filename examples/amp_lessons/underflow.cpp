// underflow: Why is the loss scaled, and when need it not be?
//
// Gradients get small, and FP16 rounds what is below 2^-25 to zero. Multiplying the loss by S multiplies every gradient
// by S; the optimizer divides by S in FP32. So nothing changes but what FP16 can hold in between.
//
// Predictions:
//   A scale of 2^16 moves every gradient up by 16 powers of two, exactly, and changes nothing else.
//   A network that classifies images loses under 1 % of its gradients at scale 1, and trains as well without scaling.
//   One that learns f in u' = f(u) from steps u + h f(u), h = 1/128: its gradients carry h^2 and the mean over all
//   pixels. At scale 1 each layer loses over 99 % and the loss stays; with 2^8 or a dynamic scale it falls as in FP32.
#include <cmath>
#include <numeric>

#include "demi/amp/inspect.h"
#include "demi/demi.h"
#include "demi/examples/amp_lessons/lesson.h"
#include "demi/examples/amp_lessons/networks.h"

namespace demi::lessons {
namespace {

using kernels::ValueCounts;
struct LayerGradients {
  std::string layer;
  ValueCounts output, weights;  // gradients that backward hands to the layer, and those of its weights
};

// The gradients of one step in FP32 with the loss multiplied by `scale`: what FP16 would have to hold.
template <typename Network>
std::vector<LayerGradients> look(Lesson& lesson, const data::Batch& batch, double scale) {
  manual_seed(lesson.seed());
  Network network;
  network.to(lesson.device());
  amp::Inspector inspector(network);
  backward(scale * network.loss(batch));
  std::vector<LayerGradients> all;
  for (const auto& op : inspector.operations())
    if (op.weight_gradient.values() > 0) all.push_back({op.layer, op.gradient, op.weight_gradient});
  return all;
}

double lost(const ValueCounts& c) { return double(c.kinds[ValueCounts::Fp16Zero]) / double(c.finite_non_zero()); }

// Gives the least and the most that a layer loses of what it is handed, at scale 1.
template <typename Network>
std::pair<double, double> show_gradients(Lesson& lesson, const data::Batch& batch, const std::string& chart_name) {
  const auto at_1 = look<Network>(lesson, batch, 1), at_2_8 = look<Network>(lesson, batch, 256);
  const auto at_2_16 = look<Network>(lesson, batch, 65536);
  Table table({"gradient of", "median", "lost at scale 1", "at 2^8", "at 2^16", "infinite at 2^16"});
  double least = 1, most = 0;
  bool moved = true;
  std::vector<std::pair<std::string, ValueCounts>> handed, scaled;
  for (size_t i = 0; i < at_1.size(); ++i)
    for (const auto part : {&LayerGradients::output, &LayerGradients::weights}) {
      const bool output = part == &LayerGradients::output;
      const ValueCounts &a = at_1[i].*part, &b = at_2_8[i].*part, &c = at_2_16[i].*part;
      const auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
      table.row(at_1[i].layer + (output ? ", output" : ", weights"), median_exponent(a), percent(lost(a)),
                percent(lost(b)), percent(lost(c)), c.kinds[ValueCounts::Fp16Overflow]);
      for (size_t e = 0; e + 16 < a.exponents.size(); ++e) moved = moved && a.exponents[e] == c.exponents[e + 16];
      if (!output) continue;
      least = std::min(least, lost(a));
      most = std::max(most, lost(a));
      handed.emplace_back(at_1[i].layer, a);
      scaled.emplace_back(at_1[i].layer, c);
    }
  lesson.show(table);
  lesson.predict("a scale of 2^16 moves every gradient up by 16 powers of two", moved);
  lesson.save(chart_name, exponent_chart("Gradients that layers are handed, scale 1", handed));
  lesson.save(chart_name + "_scaled", exponent_chart("The same with the loss scaled by 2^16", scaled));
  return {least, most};
}

// Adam over the batches, in FP16 where the loss is scaled, else in FP32; gives the loss of each step.
template <typename Network>
std::vector<double> train(Lesson& lesson, const std::vector<data::Batch>& batches,
                          const amp::GradScalerOptions& scaling, double lr) {
  manual_seed(lesson.seed());
  Network network;
  network.to(lesson.device());
  optim::Adam adam(network.parameters(), {.lr = lr});
  amp::GradScaler scaler(scaling);
  std::vector<double> losses;
  for (const data::Batch& batch : batches) {
    adam.zero_grad();
    const Variable loss = [&] {
      const amp::Autocast region(DType::F16, scaling.enabled);
      return network.loss(batch);
    }();
    backward(scaler.scale(loss));
    scaler.step(adam);
    scaler.update();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

// FP32, then FP16 at three scales: prints, and gives, the loss of the last 20 steps against the first.
template <typename Network>
std::vector<double> compare(Lesson& lesson, const std::vector<data::Batch>& batches, double lr,
                            const std::string& chart_name) {
  const std::pair<const char*, amp::GradScalerOptions> runs[] = {
      {"FP32", {.enabled = false}},
      {"FP16, scale 1", {.init_scale = 1, .growth_interval = 100000}},
      {"FP16, scale 2^8", {.init_scale = 256, .growth_interval = 100000}},
      {"FP16, dynamic scale", {}}};
  Table table({"run", "loss, first step", "loss, last 20 steps", "of the first"});
  Chart chart{.title = "Loss", .x_label = "step", .y_label = "loss"};
  std::vector<double> left;
  for (const auto& [name, scaling] : runs) {
    const std::vector<double> losses = train<Network>(lesson, batches, scaling, lr);
    const size_t count = std::min<size_t>(20, losses.size());
    const double last = std::reduce(losses.end() - std::ptrdiff_t(count), losses.end()) / double(count);
    left.push_back(last / losses[0]);
    table.row(name, fmt::format("{:#.3g}", losses[0]), fmt::format("{:#.3g}", last),
              fmt::format("{:.1f} %", 100 * left.back()));
    chart.series.push_back({.name = name, .colour = int(left.size()) - 1, .dashed = left.size() == 1});
    for (size_t i = 0; i < losses.size(); i += 5) {
      chart.series.back().x.push_back(static_cast<double>(i));
      chart.series.back().y.push_back(losses[i]);
    }
  }
  lesson.show(table);
  lesson.save(chart_name, chart);
  return left;
}

}  // namespace

void underflow(Lesson& lesson) {
  std::vector<data::Batch> batches;
  const size_t count = lesson.fast() ? 80 : 188;  // 188 of 32: one pass over the built-in set
  const data::LoadOptions options{.batch = lesson.fast() ? 16 : 32, .seed = lesson.seed()};
  for (const data::Batch& batch : lesson.open_data().train(options, lesson.device()))
    if (batches.size() < count) batches.push_back(batch);
  lesson.section("A network that classifies images");
  const auto images = show_gradients<Classifier>(lesson, batches[0], "underflow_classifier");
  lesson.predict("no layer loses 1 % at scale 1", images.second < 0.01);
  std::vector<double> left = compare<Classifier>(lesson, batches, 3e-3, "underflow_classifier_loss");
  lesson.predict("without scaling it trains as in FP32, to 0.1 of the first loss", std::abs(left[1] - left[0]) < 0.1);
  lesson.section("A network that learns how heat flows");
  const auto heat = show_gradients<HeatFlow>(lesson, batches[0], "underflow_heat");
  lesson.predict("every layer loses over 99 % at scale 1", heat.first > 0.99);
  left = compare<HeatFlow>(lesson, batches, 1e-2, "underflow_heat_loss");
  lesson.predict("at scale 1 the loss stays within 20 % of the first", std::abs(left[1] - 1) < 0.2);
  lesson.predict("in FP32, at 2^8 and dynamically it falls under a fifth", std::max({left[0], left[2], left[3]}) < 0.2);
}

}  // namespace demi::lessons
