// ladder: What does each part of mixed precision add?
//
// One network on every rung: 192 > 32 > 32 > 10 with layer norm and ReLU, on images of 8 x 8 pixels from 0 to 255, SGD
// in many small steps. Its loss is divided by 4,096, as that of a network that labels each pixel of a 64 x 64 image is.
// So there is something in it for each part to mend. FP32's way: how far FP32 brings the loss down from ln 10, a guess.
//
// Predictions:
//   Naive FP16, and FP16 with FP32 sums and masters, go under half of the way. With a fixed scale, a dynamic one,
//   autocast, and in BF16 without a scale it is over 90 %. Without masters the fixed scale is 3 % of the way behind.
// Why: in naive FP16 layer norm's sums of squares pass 65,504. With FP32 sums what reaches the first layer still lies
// below 2^-25: 1/4,096, and layer norm divides it by the pixels' spread. Updates below half of FP16's spacing are lost.
#include <cmath>

#include "demi/demi.h"
#include "demi/examples/amp_lessons/lesson.h"
#include "demi/examples/amp_lessons/naive_fp16.h"

namespace demi::lessons {
namespace {

struct Rung {
  const char* name;
  DType dtype = DType::F16;
  bool fp16_sums = false, masters = true;
  double scale = 1;  // of the loss; 0: dynamic
  bool autocast = false;
};
constexpr Rung kRungs[] = {
    {.name = "FP32", .dtype = DType::F32},
    {.name = "naive FP16", .fp16_sums = true, .masters = false},
    {.name = "+ FP32 sums", .masters = false},
    {.name = "+ FP32 masters"},
    {.name = "+ fixed scale 2^14", .scale = 16384},
    {.name = "+ dynamic scale", .scale = 0},
    {.name = "+ autocast, FP32 norms", .scale = 0, .autocast = true},
    {.name = "BF16 autocast", .dtype = DType::BF16, .autocast = true},
    {.name = "2^14, no masters", .masters = false, .scale = 16384},
};
constexpr double kLr = 1e-3, kPixels = 4096;

struct Net {
  const Rung& rung;
  std::vector<Variable> weights;

  Variable linear(const Variable& x, const Variable& w) {
    if (rung.autocast || rung.dtype == DType::F32) return demi::linear(x, w);
    const Variable w16 = rung.masters ? compute_copy(w, DType::F16) : w;
    return rung.fp16_sums ? NaiveLinear::apply(x, w16) : demi::linear(x, w16);
  }
  Variable normalize(const Variable& x) {
    return rung.autocast || rung.dtype == DType::F32 ? layer_norm(x) : naive_layer_norm(x, rung.fp16_sums);
  }
  Variable logits(const Tensor& x) {
    const amp::Autocast region(rung.autocast ? rung.dtype : DType::F32);
    const Variable h = relu(normalize(linear(cast(x, rung.dtype), weights[0])));
    return linear(relu(normalize(linear(h, weights[1]))), weights[2]);
  }
};

using Batches = std::vector<data::Batch>;  // of images [64, 192]
Batches shrink(const data::Batches& batches) {
  Batches all;
  for (data::Batch batch : batches) {
    batch.images = flatten(avg_pool2d(batch.images, {.kernel = {4, 4}, .stride = {4, 4}})).tensor();
    all.push_back(batch);
  }
  return all;
}

struct Result {
  std::vector<double> steps, losses;    // means of 100 steps
  size_t weights = 0, activations = 0;  // bytes between forward and backward
  double accuracy = 0;
};

Result climb(const Rung& rung, const Batches& train, const Batches& test, const Device device) {
  const auto bytes = [&](memory::Category kind) { return memory::statistics(device).by_category[size_t(kind)]; };
  const size_t before = bytes(memory::Category::Activations);
  Net net{rung, {}};
  std::vector<Parameter> masters;
  for (const auto& [in, out] : {std::pair(192, 32), std::pair(32, 32), std::pair(32, 10)}) {
    const memory::Scope scope(memory::Category::Weights);
    const Tensor w = nn::Linear({.in = in, .out = out, .bias = false}).weight.master().to(device);
    net.weights.push_back(rung.masters ? masters.emplace_back(w) : Variable(kernels::cast(w, DType::F16), true));
  }
  std::unique_ptr<optim::SGD> sgd;
  if (rung.masters) sgd = std::make_unique<optim::SGD>(masters, optim::SGDOptions{.lr = kLr * kPixels});
  amp::GradScaler scaler({.init_scale = rung.scale > 0 ? rung.scale : 65536, .enabled = rung.dtype == DType::F16});
  Result result;
  Tensor total = Tensor::zeros({}, DType::F32, device), correct = Tensor::zeros({}, DType::I64, device);
  for (size_t step = 1; step <= 5000; ++step) {
    const auto& [images, labels, count, index] = train[step % train.size()];
    const Variable loss = nn::cross_entropy(net.logits(images), labels);
    result.weights = bytes(memory::Category::Weights) + bytes(memory::Category::ComputeCopies);
    result.activations = bytes(memory::Category::Activations) - before;
    if (rung.masters) {
      sgd->zero_grad();
      backward(scaler.scale(loss * (1 / kPixels)));
      scaler.step(*sgd);
      rung.scale > 0 ? scaler.update(rung.scale) : scaler.update();
    } else {
      backward(loss * (rung.scale / kPixels));
      for (Variable& w : net.weights) {  // w -= lr * gradient, rounded to FP16
        Tensor values = w.tensor();
        kernels::axpy(-kLr * kPixels / rung.scale, w.grad(), values);
        w.zero_grad();
      }
    }
    kernels::axpy(0.01, loss.tensor(), total);
    if (step % 100 != 0) continue;
    result.steps.push_back(static_cast<double>(step));
    result.losses.push_back(total.item<float>());
    total.zero();
  }
  const NoGrad off;
  for (const auto& b : test) kernels::count_correct(net.logits(b.images).tensor(), b.labels, correct);
  result.accuracy = 100 * double(correct.item<int64_t>()) / double(64 * test.size());
  return result;
}
}  // namespace

void ladder(Lesson& lesson) {
  data::Source set = lesson.open_data();
  const data::LoadOptions pixels{
      .batch = 64, .normalization = {{}, {1 / 255.f, 1 / 255.f, 1 / 255.f}}, .seed = lesson.seed(), .drop_last = true};
  const auto train = shrink(set.train(pixels, lesson.device())), test = shrink(set.test(pixels, lesson.device()));
  Table table({"rung", "last loss", "of FP32's way", "accuracy", "weights KiB", "activations KiB"});
  Chart chart{.title = "The ladder: training loss of each rung", .x_label = "step", .y_label = "loss"};
  std::vector<double> way;
  double fp32 = 0;
  for (const Rung& rung : kRungs) {
    manual_seed(lesson.seed());
    const Result r = climb(rung, train, test, lesson.device());
    if (way.empty()) fp32 = std::log(10) - r.losses.back();
    way.push_back((std::log(10) - r.losses.back()) / fp32);
    table.row(rung.name, fmt::format("{:.3f}", r.losses.back()), fmt::format("{:.0f} %", 100 * way.back()),
              fmt::format("{:.1f} %", r.accuracy), r.weights / 1024, r.activations / 1024);
    chart.series.push_back({rung.name, r.steps, r.losses, static_cast<int>(way.size()) - 1, way.size() > 6});
  }
  lesson.section(fmt::format("The ladder on {}, 5,000 steps of batch 64", set.name()));
  lesson.show(table);
  lesson.save("ladder", chart);
  lesson.predict("FP16 without a scale goes under half of FP32's way", std::max({way[1], way[2], way[3]}) < 0.5);
  lesson.predict("with a scale, or in BF16 without, over 90 %", std::min({way[4], way[5], way[6], way[7]}) > 0.9);
  lesson.predict("without masters at least 3 points less of that way than with them", way[8] < way[4] - 0.03);
}

}  // namespace demi::lessons
