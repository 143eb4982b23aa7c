// The whole of mixed-precision training in one function; the README shows it. Trains the built-in set for two epochs.
#include <fmt/core.h>

#include "demi/demi.h"
using namespace demi;

int main() {
  const Device device = Device::best();
  data::Synthetic set;  // or data::Cifar10 set("cifar-10-batches-bin");
  auto model = nn::resnet18({.classes = 10, .stem = nn::Stem::Cifar, .width = device.is_cuda() ? 1.0 : 0.25});
  model->to(device);
  optim::SGD sgd(model->parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4});
  amp::GradScaler scaler;  // AMP
  for (int epoch = 0; epoch < 2; ++epoch) {
    Variable loss;
    for (const data::Batch& batch : set.train({.batch = 64, .augment = data::crop_and_flip}, device)) {
      sgd.zero_grad();
      {
        amp::Autocast region(DType::F16);  // AMP
        loss = nn::cross_entropy((*model)(batch.images), batch.labels);
      }
      backward(scaler.scale(loss));  // AMP
      scaler.step(sgd);              // AMP
      scaler.update();               // AMP
    }
    fmt::print("epoch {}: last loss {:.3f}, loss scale {}\n", epoch + 1, loss.item<float>(), scaler.get_scale());
  }
}
