// Training on weights from PyTorch: a load leaves nothing stale, and batch norm counts its batches as PyTorch does.
#include <set>

#include "torch_models.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

namespace demi::test {
namespace {

class TrainedTorchState : public OnDevice {
  const WithoutPlanSearch quick_;
};
DEMI_ON_ALL_DEVICES(TrainedTorchState);

TEST_P(TrainedTorchState, ALoadRefreshesCopiesAndShadows) {
  const StateDict weights = golden_state("cifar");
  const auto fresh = make("cifar");
  fresh->to(device());
  nn::load_torch(*fresh, weights);
  const amp::Autocast region(DType::F16);
  const std::vector<double> expected = logits_of(*fresh, device());

  TorchTraining t(device());
  t.step();  // compute copies and shadows exist from here on
  EXPECT_NE(logits_of(*t.model, device()), expected);
  nn::load_torch(*t.model, weights);
  EXPECT_EQ(logits_of(*t.model, device()), expected);
  t.step(TorchTraining::kOverflow);
  EXPECT_TRUE(bytes_of(nn::to_torch(*t.model)) == bytes_of(weights)) << "a skipped step gives back what was loaded";
  EXPECT_EQ(logits_of(*t.model, device()), expected);
}

// The counts of all batch norms, which must be one number.
int64_t count_of(const nn::Module& model) {
  std::set<int64_t> counts;
  int layers = 0;
  for (const auto& [name, t] : nn::to_torch(model))
    if (name.ends_with("num_batches_tracked")) counts.insert(t.item<int64_t>()), ++layers;
  EXPECT_EQ(layers, 20);
  EXPECT_EQ(counts.size(), 1u);
  return *counts.begin();
}

TEST_P(TrainedTorchState, BatchNormCountsTrainingBatches) {
  TorchTraining t(device());
  EXPECT_EQ(count_of(*t.model), 0);
  t.step();
  t.step();
  EXPECT_EQ(count_of(*t.model), 2);
  logits_of(*t.model, device());
  EXPECT_EQ(count_of(*t.model), 2) << "eval";
  t.step(TorchTraining::kOverflow);
  EXPECT_EQ(count_of(*t.model), 2) << "skipped";
  t.step();
  EXPECT_EQ(count_of(*t.model), 3);
  // Past what FP32 could count.
  StateDict state = nn::to_torch(*t.model);
  const int64_t large = (int64_t{1} << 53) + 1;
  for (auto& [name, count] : state)
    if (name.ends_with("num_batches_tracked")) count = Tensor::scalar<int64_t>(large);
  nn::load_torch(*t.model, state);
  t.step(TorchTraining::kOverflow);
  EXPECT_EQ(count_of(*t.model), large);
  t.step();
  EXPECT_EQ(count_of(*t.model), large + 1);
}

// Every micro-batch of a window is counted, and a skipped window takes them all back.
TEST_P(TrainedTorchState, BatchNormCountsMicroBatches) {
  TorchTraining t(device());
  t.step();
  for (const double scale : {1024.0, TorchTraining::kOverflow}) {
    (*t.model)(t.images);  // one more forward before the step
    t.step(scale);
    EXPECT_EQ(count_of(*t.model), 3);
  }
}

#if DEMI_CUDA
TEST(TorchStateGraph, ReplaysCountTheirBatches) {
  if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
  const WithoutPlanSearch quick;
  TorchTraining t(Device::cuda());
  amp::GradScaler scaler({.init_scale = 1024});
  t.model->train();
  cuda::Graph graph(
      [&] {
        t.sgd->zero_grad();
        Variable loss;
        {
          const amp::Autocast region(DType::F16);
          loss = nn::cross_entropy((*t.model)(t.images), t.labels);
        }
        backward(scaler.scale(loss));
        scaler.step(*t.sgd);
        scaler.update();
      },
      3);
  EXPECT_EQ(count_of(*t.model), 3);
  graph.replay();
  graph.replay();
  EXPECT_EQ(count_of(*t.model), 5);
  scaler.update(TorchTraining::kOverflow);
  graph.replay();
  EXPECT_EQ(count_of(*t.model), 5) << "skipped";
}
#endif

}  // namespace
}  // namespace demi::test
