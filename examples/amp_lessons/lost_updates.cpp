// lost_updates: Why keep FP32 weights when the network runs in FP16?
//
// A step of SGD subtracts a small number, learning rate times gradient, from a larger one. If it is less than half the
// distance to the next number, the rounded result is the weight as it was: the update is lost.
//
// Predictions:
//   A weight of 1 and a hundred steps of 1e-4: in FP16 it stays 1, for its numbers below 1 are 4.9e-4 apart. With an
//   FP32 master it ends at 0.99, and the FP16 copy of the master too.
//   In a network the share of lost updates grows as the learning rate falls, and BF16 loses more than FP16.
//   At a learning rate of 1/8 FP16 weights learn as well as masters do. At 1/8192 they lose over 90 % of the updates
//   and the loss falls less than a quarter as far as with masters, which lose under 1 %.
#include <cmath>

#include "demi/demi.h"
#include "demi/examples/amp_lessons/lesson.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/value_counts.h"

namespace demi::lessons {
namespace {

void one_weight(Lesson& lesson) {
  lesson.section("A weight of 1, a hundred steps of 1e-4");
  const Tensor gradient = kernels::full({1}, 1, DType::F32, lesson.device());
  Tensor fp16 = kernels::full({1}, 1, DType::F16, lesson.device());
  Tensor bf16 = kernels::full({1}, 1, DType::BF16, lesson.device());
  Tensor master = kernels::full({1}, 1, DType::F32, lesson.device());
  Table table({"steps", "fp16 weight", "bf16 weight", "fp32 master", "its fp16 copy"});
  Chart chart{.title = "A weight of 1, steps of 1e-4", .x_label = "steps", .y_label = "weight"};
  chart.series = {
      {.name = "FP16 weight"}, {.name = "FP32 master", .colour = 1}, {.name = "its FP16 copy", .colour = 2}};
  float weight = 1, copy = 1;
  for (int step = 0; step <= 100; ++step) {
    weight = kernels::cast(fp16, DType::F32).item<float>();
    copy = kernels::cast(master, DType::F16).item<Half>();
    const float values[] = {weight, master.item<float>(), copy};
    for (size_t i = 0; i < 3; ++i) {
      chart.series[i].x.push_back(step);
      chart.series[i].y.push_back(values[i]);
    }
    if (step == 0 || step == 1 || step == 2 || step == 3 || step == 10 || step == 100)
      table.row(step, weight, float(bf16.item<BFloat16>()), fmt::format("{:.6f}", values[1]),
                fmt::format("{:.6f}", copy));
    for (Tensor* w : {&fp16, &bf16, &master}) kernels::axpy(-1e-4, gradient, *w);  // in FP32, rounded to w's dtype
  }
  lesson.show(table);
  lesson.predict("the FP16 weight is still 1", weight == 1);
  lesson.predict("the copy of the FP32 master is 0.99, rounded to FP16", copy == float(Half(0.99f)));
  lesson.save("lost_updates_weight", chart);
}

struct Training {
  double first = 0, last = 0;  // the loss before training, and over the last pass
  double lost = 0;             // share of the updates that left their weight as it was
};

// 3,000 steps of SGD on a small network, forward and backward in 16 bits. `kept` is what its weights are kept in
// between steps: FP32 masters, or the masters rounded to 16 bits after every step. That is what 16-bit weights are.
Training train(Lesson& lesson, const std::vector<data::Batch>& batches, DType kept, double lr) {
  manual_seed(lesson.seed());
  nn::Linear hidden({.in = 192, .out = 64}), out({.in = 64, .out = 10});
  std::vector<Parameter> parameters{hidden.weight, hidden.bias, out.weight, out.bias};
  for (Parameter& p : parameters) p.to(lesson.device());
  optim::SGD sgd(parameters, {.lr = lr});
  amp::GradScaler scaler({.init_scale = 1024});
  const auto loss_of = [&](const data::Batch& batch) {
    const amp::Autocast region(kept == DType::BF16 ? DType::BF16 : DType::F16);
    return nn::cross_entropy(out(relu(hidden(batch.images))), batch.labels);
  };
  const auto mean_loss = [&] {
    const NoGrad off;
    double sum = 0;
    for (const data::Batch& batch : batches) sum += loss_of(batch).item<float>();
    return sum / static_cast<double>(batches.size());
  };
  Training result{.first = mean_loss()};
  Tensor gradients = kernels::value_counters(lesson.device()), changes = kernels::value_counters(lesson.device());
  for (size_t step = 0; step < (lesson.fast() ? 300 : 3000); ++step) {
    sgd.zero_grad();
    backward(scaler.scale(loss_of(batches[step % batches.size()])));
    std::vector<Tensor> before;
    for (const Parameter& p : parameters) before.push_back(p.master().clone());
    scaler.step(sgd);
    scaler.update();
    for (size_t i = 0; i < parameters.size(); ++i) {
      Parameter& p = parameters[i];
      if (kept != DType::F32) p.assign(kernels::cast(p.master(), kept));
      if (step % 10 != 0) continue;
      kernels::count_values(p.grad(), gradients);
      kernels::count_values(kernels::sub(p.master(), before[i]), changes);
    }
  }
  result.last = mean_loss();
  const kernels::ValueCounts g = kernels::read_counts(gradients), c = kernels::read_counts(changes);
  result.lost = static_cast<double>(c.zero() - g.zero()) / static_cast<double>(g.values() - g.zero());
  return result;
}

void network(Lesson& lesson) {
  lesson.section("A network, 3,000 steps of SGD at several learning rates");
  std::vector<data::Batch> batches;  // one pass over the set, images shrunk to 8x8 so that it takes seconds
  for (data::Batch batch : lesson.open_data().train({.batch = 100, .seed = lesson.seed()}, lesson.device())) {
    batch.images = flatten(avg_pool2d(batch.images, {.kernel = {4, 4}, .stride = {4, 4}})).tensor();
    batches.push_back(batch);
  }
  Table table({"learning rate", "loss: masters", "fp16 weights", "bf16 weights", "lost: masters", "fp16", "bf16"});
  Chart chart{.title = "Loss after 3,000 steps", .x_label = "learning rate", .y_label = "loss"};
  chart.log2_x = true;
  chart.series = {
      {.name = "FP32 masters"}, {.name = "FP16 weights", .colour = 1}, {.name = "BF16 weights", .colour = 2}};
  bool more = true, bf16_more = true, masters_keep = true;
  Training fast[3], slow[3];
  for (double lr = 1.0 / 8; lr >= 1.0 / 8192; lr /= 4) {
    Training now[3];
    for (size_t i = 0; i < 3; ++i) {
      now[i] = train(lesson, batches, std::array{DType::F32, DType::F16, DType::BF16}[i], lr);
      chart.series[i].x.push_back(lr);
      chart.series[i].y.push_back(now[i].last);
      more = more && (i == 0 || now[i].lost > slow[i].lost);
    }
    const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
    table.row(fmt::format("1/{:.0f}", 1 / lr), fmt::format("{:.3f}", now[0].last), fmt::format("{:.3f}", now[1].last),
              fmt::format("{:.3f}", now[2].last), percent(now[0].lost), percent(now[1].lost), percent(now[2].lost));
    bf16_more = bf16_more && now[2].lost > now[1].lost;
    masters_keep = masters_keep && now[0].lost < 0.01;
    std::copy(now, now + 3, slow);
    if (lr == 1.0 / 8) std::copy(now, now + 3, fast);
  }
  lesson.say("Before training the loss is {:.3f}.", slow[0].first);
  lesson.show(table);
  lesson.predict("the lower the learning rate, the more updates 16-bit weights lose", more);
  lesson.predict("BF16 weights lose more than FP16 weights", bf16_more);
  lesson.predict("FP32 masters lose under 1 %", masters_keep);
  lesson.predict("at 1/8 FP16 weights reach the masters' loss to 0.1", std::abs(fast[1].last - fast[0].last) < 0.1);
  lesson.predict("at 1/8192 FP16 weights lose over 90 %", slow[1].lost > 0.9);
  lesson.predict("and their loss falls less than a quarter as far as the masters'",
                 slow[1].first - slow[1].last < (slow[0].first - slow[0].last) / 4);
  lesson.save("lost_updates", chart);
}

}  // namespace

void lost_updates(Lesson& lesson) {
  one_weight(lesson);
  network(lesson);
}

}  // namespace demi::lessons
