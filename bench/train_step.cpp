// Times one training step of ResNet on random data that lies on the device already: the model's step alone, as the
// figures that people quote for other frameworks. Prints one line a precision: milliseconds a step back to back,
// images/s, peak memory.
//
//   train_step --precision fp32,fp16 --batch 256 [--graph] [--device auto] [--width 1] [--steps 60]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>

#include "demi/demi.h"
#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

using namespace demi;

namespace {

struct Options {
  std::string device = "auto", precision = "fp32,fp16";
  int64_t batch = 256, steps = 60, warmup = 15;
  int depth = 18;
  double width = 1;
  bool graph = false;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void measure(const Options& o, const std::string& precision) {
  const Device device = Device::parse(o.device);
  const Float32MathGuard math(precision == "tf32" ? Float32Math::Tf32 : Float32Math::Ieee);
  const DType dtype = precision == "tf32" ? DType::F32 : dtype_from_name(precision);
  manual_seed(0);
  auto model = nn::resnet({.depth = o.depth, .width = o.width});
  model->to(device);
  optim::SGD sgd(model->parameters(), {.lr = 0.01, .momentum = 0.9, .weight_decay = 5e-4});
  amp::GradScaler scaler({.enabled = dtype == DType::F16});
  Tensor images = Tensor::empty({o.batch, 32, 32, 3}, dtype, device);
  kernels::fill_normal(images, 0, 1, 1, 1);
  std::vector<int64_t> classes(static_cast<size_t>(o.batch));
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<int64_t>(i * 7 % 10);
  const Tensor labels = Tensor::from(classes, {o.batch}, device);

  std::function<void()> step = [&] {
    sgd.zero_grad();
    Variable loss;
    {
      const amp::Autocast region(dtype);
      loss = nn::cross_entropy((*model)(images), labels);
    }
    backward(scaler.scale(loss));
    scaler.step(sgd);
    scaler.update();
  };
  const double start = seconds();
  for (int64_t i = 0; i < o.warmup; ++i) step();
  synchronize(device);
  const double setup = seconds() - start;
  memory::reset_peak(device);
#if DEMI_CUDA
  std::unique_ptr<cuda::Graph> graph;
  if (o.graph) {
    graph = std::make_unique<cuda::Graph>(step, 1, device);
    step = [&] { graph->replay(); };
    step();
  }
#else
  DEMI_CHECK(!o.graph, "--graph needs a build with CUDA");
#endif
  std::vector<double> rounds;  // the median of five rounds, each back to back
  for (int round = 0; round < 5; ++round) {
    synchronize(device);
    const double from = seconds();
    for (int64_t i = 0; i < o.steps; ++i) step();
    synchronize(device);
    rounds.push_back((seconds() - from) / static_cast<double>(o.steps));
  }
  std::sort(rounds.begin(), rounds.end());
  fmt::print(
      "ResNet-{} width {} b={:<5} {:5}{} {:8.3f} ms a step ({:.3f} to {:.3f})  {:8.0f} images/s  peak {:.0f} MiB  "
      "warm-up {:.1f} s\n",
      o.depth, o.width, o.batch, precision, o.graph ? " graph" : "", rounds[2] * 1e3, rounds[0] * 1e3, rounds[4] * 1e3,
      static_cast<double>(o.batch) / rounds[2], static_cast<double>(memory::statistics(device).peak) / 0x1p20, setup);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Times one training step of ResNet on random data"};
  app.name("train_step");
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("train_step: {}; --help lists the flags\n", e.what());
  });
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--precision", o.precision, "fp32, tf32, fp16, bf16, or several with commas")->capture_default_str();
  app.add_option("--batch", o.batch)->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_option("--depth", o.depth)->capture_default_str();
  app.add_option("--width", o.width)->capture_default_str();
  app.add_option("--steps", o.steps, "a round")->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_option("--warmup", o.warmup)->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_flag("--graph", o.graph, "replay the step from a CUDA graph");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::string& p : CLI::detail::split(o.precision, ',')) measure(o, p);
  } catch (const Error& e) {
    fmt::print(stderr, "train_step: {}\n", e.what());
    return 1;
  }
}
