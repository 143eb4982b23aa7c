// The textbook network: two 3x3 convolutions (16 and 32 channels) with ReLU and 2x2 max pooling, linear 2048 to 256,
// dropout 0.5, linear to 10; Adam at 1e-3, batch 256, 10 epochs. Trained in FP32 and in mixed precision.
//
//   simple_cnn [--data DIR|synthetic] [--device auto|cpu|cuda] [--precision fp32,fp16] [--epochs 10] [--seed 0]
#include <CLI/CLI.hpp>

#include "demi/demi.h"

using namespace demi;

struct SimpleCnn : nn::Module {
  nn::Conv2d conv1{{.in = 3, .out = 16, .kernel = 3, .padding = 1}},
      conv2{{.in = 16, .out = 32, .kernel = 3, .padding = 1}};
  nn::MaxPool2d pool;
  nn::Linear fc1{{.in = 32 * 8 * 8, .out = 256, .channels = 32}}, fc2;
  nn::Dropout dropout{0.5};

  explicit SimpleCnn(int classes) : fc2({.in = 256, .out = classes}) {
    register_modules(
        {{"conv1", conv1}, {"conv2", conv2}, {"pool", pool}, {"fc1", fc1}, {"fc2", fc2}, {"dropout", dropout}});
  }
  Variable forward(const Variable& x) override {
    const Variable y = pool(relu(conv2(pool(relu(conv1(x))))));
    return fc2(dropout(relu(fc1(flatten(y)))));
  }
};

double test_accuracy(SimpleCnn& model, data::Source& set, DType precision, Device device) {
  const NoGrad off;
  const amp::Autocast region(precision);
  model.eval();
  Tensor correct = Tensor::zeros({}, DType::I64, device);
  int64_t images = 0;
  for (const data::Batch& batch : set.test({.batch = 1000}, device)) {
    kernels::count_correct(model(batch.images).tensor(), batch.labels, correct);
    images += batch.count;
  }
  model.train();
  return static_cast<double>(correct.item<int64_t>()) / static_cast<double>(images);
}

void train(data::Source& set, DType precision, Device device, int64_t epochs, uint64_t seed) {
  manual_seed(seed);
  SimpleCnn model(set.classes());
  model.to(device);
  optim::Adam adam(model.parameters(), {.lr = 1e-3});
  amp::GradScaler scaler({.enabled = precision == DType::F16});
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    Tensor total = Tensor::zeros({}, DType::F32, device);  // on the device: no step waits for it
    int64_t images = 0;
    for (const data::Batch& batch : set.train({.batch = 256, .seed = seed, .epoch = epoch}, device)) {
      adam.zero_grad();
      Variable loss;
      {
        const amp::Autocast region(precision);
        loss = nn::cross_entropy(model(batch.images), batch.labels);
      }
      backward(scaler.scale(loss));
      scaler.step(adam);
      scaler.update();
      kernels::axpy(static_cast<double>(batch.count), loss.tensor(), total);
      images += batch.count;
    }
    fmt::print("{}  epoch {:2}  loss {:.4f}  test {:.2f} %\n", precision, epoch + 1,
               total.item<float>() / static_cast<double>(images), 100 * test_accuracy(model, set, precision, device));
    std::fflush(stdout);
  }
}

int main(int argc, char** argv) {
  std::string data = "synthetic", device = "auto", precisions = "fp32,fp16";
  int64_t epochs = 10;
  uint64_t seed = 0;
  CLI::App app{"The textbook CNN on CIFAR-10, in FP32 and in mixed precision"};
  app.name("simple_cnn");
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("simple_cnn: {}; --help lists the flags\n", e.what());
  });
  app.add_option("--data", data, "synthetic, or the folder of CIFAR-10's binary files")->capture_default_str();
  app.add_option("--device", device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--precision", precisions, "fp32, fp16, bf16, or several with commas")->capture_default_str();
  app.add_option("--epochs", epochs, "passes over the training set")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--seed", seed, "of weights, order and dropout")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    data::Source set = data::open(data);
    for (const std::string& p : CLI::detail::split(precisions, ','))
      train(set, dtype_from_name(p), Device::parse(device), epochs, seed);
  } catch (const Error& e) {
    fmt::print(stderr, "simple_cnn: {}\n", e.what());
    return 1;
  }
}
