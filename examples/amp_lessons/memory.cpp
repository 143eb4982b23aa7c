// memory: Where do the bytes go, and what does FP16 save?
//
// Predictions, for a ResNet-18 with SGD and momentum, between forward and backward:
//   A parameter costs 12 bytes in both. FP32: weight 4, gradient 4, momentum 4. FP16: FP32 master 4, FP16 copy 2, FP16
//   gradient 2, momentum 4. Weights do not shrink, they grow by half.
//   Activations take half the bytes, to 10 %: all but images and loss are FP16.
//   So all together is over 90 % at a batch of one, and comes near a half only as the batch grows.
//   What does not shrink is the same in both, so of the rest FP16 fits nearly twice as much: over 1.5 times the batch.
#include "demi/core/parallel.h"
#include "demi/examples/amp_lessons/lesson.h"
#include "demi/examples/amp_lessons/small_net.h"

namespace demi::lessons {
namespace {

using memory::Category;

struct Training {
  std::unique_ptr<nn::ResNet> net = nn::resnet18({.width = 0.25});
  std::unique_ptr<optim::SGD> sgd;
  amp::GradScaler scaler;
  DType dtype;

  Training(DType dtype_, Device device) : scaler({.enabled = dtype_ == DType::F16}), dtype(dtype_) {
    net->to(device);
    sgd = std::make_unique<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
  }
  void step(const data::Batch& batch) { train_step(*net, *sgd, scaler, batch, dtype); }
};

// What an image shows does not matter here.
data::Batch blank(int64_t n, Device device) {
  return {Tensor::zeros({n, 32, 32, 3}, DType::F32, device), Tensor::zeros({n}, DType::I64, device), n, 0};
}

// Live bytes by category between the forward and the backward pass of the second step.
std::array<double, memory::kCategories> look(DType dtype, int64_t batch_size, Device device) {
  Training training(dtype, device);
  const data::Batch batch = blank(batch_size, device);
  training.step(batch);
  const amp::Autocast region(dtype);
  const Variable loss = nn::cross_entropy((*training.net)(batch.images), batch.labels);
  std::array<double, memory::kCategories> bytes{};
  for (size_t c = 0; c < bytes.size(); ++c) bytes[c] = double(memory::statistics(device).by_category[c]);
  bytes[size_t(Category::Workspace)] = 0;  // scratch of single operations
  return bytes;
}

bool fits(DType dtype, int64_t batch_size, size_t limit, Device device) {
  memory::release_cached(device);
  memory::set_limit(device, limit);  // as DEMI_MEMORY_LIMIT does
  bool good = true;
  try {
    Training training(dtype, device);
    for (int step = 0; step < 2; ++step) training.step(blank(batch_size, device));
    synchronize(device);
  } catch (const Error&) {
    good = false;
  }
  memory::set_limit(device, 0);
  return good;
}
}  // namespace

void memory(Lesson& lesson) {
  const Device device = lesson.device();
  const auto mib = [](double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); };

  lesson.section("Live MiB by category, batch 64");
  constexpr Category kinds[] = {Category::Weights, Category::ComputeCopies, Category::Gradients,
                                Category::OptimizerState, Category::Activations};
  const auto fp32 = look(DType::F32, 64, device), fp16 = look(DType::F16, 64, device);
  const auto parameters = double(nn::resnet18({.width = 0.25})->parameters().numel());
  double each32 = 0, each16 = 0;
  Table categories({"category", "FP32", "FP16", "FP16 / FP32", "bytes a parameter, FP32", "FP16"});
  for (const Category kind : kinds) {
    const double a = fp32[size_t(kind)], b = fp16[size_t(kind)];
    const bool of_parameters = kind != Category::Activations;
    if (of_parameters) each32 += a / parameters, each16 += b / parameters;
    const auto each = [&](double x) { return of_parameters ? fmt::format("{:.1f}", x / parameters) : ""; };
    categories.row(name_of(kind), mib(a), mib(b), a > 0 ? fmt::format("{:.2f}", b / a) : "", each(a), each(b));
  }
  lesson.show(categories);
  lesson.predict("a parameter costs 12 bytes in both", std::abs(each32 - 12) < 0.2 && std::abs(each16 - 12) < 0.2);
  const double activations = fp16[size_t(Category::Activations)] / fp32[size_t(Category::Activations)];
  lesson.predict("activations are halved, to 10 %", std::abs(activations - 0.5) < 0.05);

  lesson.section("All together, against the batch");
  Table batches({"batch", "FP32 MiB", "FP16 MiB", "FP16 / FP32"});
  BarChart chart{
      .title = "Live bytes between forward and backward", .x_label = "batch and precision", .y_label = "MiB"};
  chart.stacked = true;
  for (const Category kind : kinds) chart.series.push_back({name_of(kind), {}, int(chart.series.size())});
  std::vector<double> ratios;
  for (const int64_t size : {1, 4, 16, 64}) {
    double total[2] = {0, 0};
    for (const DType dtype : {DType::F32, DType::F16}) {
      const auto bytes = look(dtype, size, device);
      chart.groups.push_back(fmt::format("{}, {}", size, dtype));
      for (size_t k = 0; k < std::size(kinds); ++k) {
        chart.series[k].values.push_back(bytes[size_t(kinds[k])] / (1 << 20));
        total[dtype == DType::F16] += bytes[size_t(kinds[k])];
      }
    }
    ratios.push_back(total[1] / total[0]);
    batches.row(size, mib(total[0]), mib(total[1]), fmt::format("{:.2f}", ratios.back()));
  }
  lesson.show(batches);
  lesson.save("memory", chart);
  lesson.predict("at a batch of one FP16 takes over 90 %, and less with each larger batch",
                 ratios[0] > 0.9 && std::is_sorted(ratios.rbegin(), ratios.rend()));

  const size_t limit = size_t(device.is_cpu() ? 64 : 512) << 20;
  const int64_t finest = device.is_cpu() ? 2 : 64;
  lesson.section(fmt::format("The largest batch within {} MiB, in steps of {}", limit >> 20, finest));
  const int threads = num_threads();
  set_num_threads(1);  // how many threads need scratch at once is a matter of chance
  int64_t largest[2] = {0, 0};
  for (const DType dtype : {DType::F32, DType::F16})
    for (int64_t more = 32 * finest; more >= finest; more /= 2)
      if (auto& n = largest[dtype == DType::F16]; fits(dtype, n + more, limit, device)) n += more;
  set_num_threads(threads);
  const double times = double(largest[1]) / double(largest[0]);
  lesson.say("FP32: {}, FP16: {}, {:.2f} times as many", largest[0], largest[1], times);
  lesson.predict("FP16 fits over 1.5 times the batch", times > 1.5);
}

}  // namespace demi::lessons
