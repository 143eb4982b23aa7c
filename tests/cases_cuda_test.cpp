// Faults that only a GPU can have: 32-bit indices in tensors beyond 2^31 elements, and work on the wrong device.
#if DEMI_CUDA
#include <thread>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/pool.h"
#include "demi/kernels/reduce.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {
namespace {

using Values = std::vector<double>;

TEST(CudaFault, MaxPoolBeyondThirtyTwoBits) {
  if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
  if (backend::free_memory(0) < (size_t{20} << 30)) GTEST_SKIP() << "needs 20 GiB of device memory";
  const Device device = Device::cuda();
  const int64_t images = 190, channels = 2933;
  Values values(static_cast<size_t>(images * channels));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 97);
  const Tensor row = tensor_of(values, {images, 1, 1, channels}, DType::F16, device);
  kernels::MaxPoolResult r;
  {
    const Tensor x = kernels::broadcast_to(row, {images, 64, 64, channels});
    ASSERT_GT(x.numel(), int64_t{1} << 31);
    r = kernels::max_pool2d(x, {});
  }
  const Values last(values.end() - channels, values.end()), y = values_of(r.y.narrow(images - 1, 1));
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], last[i % last.size()]);
  const Tensor dx = kernels::max_pool2d_backward(r.y, r.index, {images, 64, 64, channels}, {});
  const Values gradient = values_of(dx.narrow(images - 1, 1));
  for (size_t i = 0; i < gradient.size(); ++i) {
    const size_t pixel = i / last.size();
    const bool taken = pixel % 2 == 0 && pixel / 64 % 2 == 0;  // the first of four equals
    ASSERT_EQ(gradient[i], taken ? last[i % last.size()] : 0);
  }
}

TEST(CudaFault, MixOfDevices) {
  if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
  const auto at = [](const Shape& shape, Device device) { return kernels::full(shape, 1, DType::F32, device); };
  const Device here = Device::cpu(), there = Device::cuda();
  const Tensor image = at({1, 4, 4, 8}, there), vector = at({8}, here);
  Buffer mean(at({8}, here)), var(at({8}, here));
  const std::vector<std::pair<const char*, std::function<void()>>> mixes{
      {"add", [&] { add(at({2}, here), at({2}, there)); }},
      {"linear",
       [&] {
         linear(at({2, 3}, there), at({4, 3}, here), {});
       }},
      {"conv2d",
       [&] {
         conv2d(image, at({8, 3, 3, 8}, here), {}, {});
       }},
      {"conv2d",
       [&] {
         conv2d(image, at({8, 3, 3, 8}, there), vector, {});
       }},
      {"batch_norm", [&] { batch_norm(image, {.running_mean = mean, .running_var = var}); }},
      {"cross_entropy",
       [&] {
         cross_entropy(at({2, 3}, there), Tensor::zeros({2}, DType::I64, here));
       }},
      {"mse", [&] { mse_loss(at({2}, there), at({2}, here)); }},
      {"optimizer", [&] {
         optim::SGD(std::vector{Parameter(at({1}, here)), Parameter(at({1}, there))}, {.lr = 1});
       }}};
  for (const auto& [op, mix] : mixes) {
    const std::string message = error_of(mix);
    for (const char* part : {op, "cpu", "cuda:0"}) EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(CudaFault, WorkOnTheWrongDevice) {
  if (backend::device_count() < 2) GTEST_SKIP() << "needs two devices";
  const WithoutPlanSearch quick;
  const auto train = [](Device device) {  // device 0 is current throughout
    const Parameter filter(tensor_of(noise(8 * 9 * 8), {8, 3, 3, 8}, DType::F32, device)),
        matrix(tensor_of(noise(5 * 8, 2), {5, 8}, DType::F32, device));
    Buffer mean(kernels::full({8}, 0, DType::F32, device)), var(kernels::full({8}, 1, DType::F32, device));
    optim::SGD sgd(std::vector{filter, matrix}, {.lr = 0.1, .momentum = 0.9});
    amp::GradScaler scaler;
    for (int i = 0; i < 3; ++i) {
      sgd.zero_grad();
      Variable loss;
      {
        const amp::Autocast region;
        Variable x = tensor_of(noise(4 * 64 * 8, 3), {4, 8, 8, 8}, DType::F32, device);
        x = relu(batch_norm(conv2d(x, filter, {}, {.padding = {1, 1}}), {.running_mean = mean, .running_var = var}));
        loss = cross_entropy(linear(global_avg_pool(max_pool2d(x, {})), matrix, {}),
                             Tensor::from<int64_t>({0, 1, 2, 3}, {4}, device));
      }
      backward(scaler.scale(loss));
      scaler.step(sgd);
      scaler.update();
    }
    std::thread([t = Tensor::zeros({1000}, DType::F32, device)]() mutable { t = {}; }).join();  // freed elsewhere
    return std::vector{values_of(filter.master()), values_of(matrix.master()), values_of(mean.tensor())};
  };
  EXPECT_EQ(train(Device::cuda(1)), train(Device::cuda(0)));
}

}  // namespace
}  // namespace demi::test
#endif
