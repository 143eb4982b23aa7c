// Replays of a captured training step: what the host would have noticed in an eager step, a replay notices too.
#include "training.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#include "demi/kernels/fill.h"
#include "demi/nn/functional/linear.h"

namespace demi::test {
namespace {

class GraphReplay : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
    set_deterministic(true);
  }
  void TearDown() override { set_deterministic(false); }
};

// A load between two replays writes masters; the captured step must not go on with the copies of the old ones.
TEST_F(GraphReplay, SeesWeightsThatWereLoadedAfterTheCapture) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    Training eager(Device::cuda(), dtype), replayed(Device::cuda(), dtype);
    const auto start = eager.model->state();
    for (int i = 0; i < 4; ++i) eager.step();
    cuda::Graph graph([&] { (void)replayed.step(); }, 3);
    graph.replay();
    EXPECT_EQ(replayed.everything(), eager.everything()) << name_of(dtype);
    eager.model->load_state(start);
    replayed.model->load_state(start);
    for (int i = 0; i < 2; ++i) {
      eager.step();
      graph.replay();
      EXPECT_EQ(replayed.everything(), eager.everything()) << name_of(dtype) << ", replay " << i << " after the load";
    }
  }
}

// Replays write masters behind the host's back: a copy in another dtype, which they do not write, must be made again.
TEST_F(GraphReplay, LeavesNoStaleCopyForEagerWork) {
  Training t(Device::cuda(), DType::F16);
  t.step();
  const Parameter first = t.model->parameters().parameters.front();
  const auto copy_of = [&](DType dtype) { return values_of(first.parameter().compute(dtype)); };
  (void)copy_of(DType::BF16);
  cuda::Graph graph([&] { (void)t.step(); }, 1);
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    for (const DType dtype : {DType::F16, DType::BF16})
      EXPECT_EQ(copy_of(dtype), rounded_to(dtype, values_of(first.master()))) << name_of(dtype) << ", replay " << i;
  }
}

TEST_F(GraphReplay, MakesNewCopiesThatTheCaptureDidNotKnow) {
  Training t(Device::cuda(), DType::F16);
  cuda::Graph graph([&] { (void)t.step(); }, 1);
  const Parameter first = t.model->parameters().parameters.front();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(values_of(first.parameter().compute(DType::BF16)), rounded_to(DType::BF16, values_of(first.master())));
    graph.replay();
  }
  EXPECT_EQ(values_of(first.parameter().compute(DType::BF16)), rounded_to(DType::BF16, values_of(first.master())));
}

// The scale is made by the first scale(): were that captured, each replay would reset it.
TEST_F(GraphReplay, RefusesToMakeTheLossScaleInACapture) {
  Training other(Device::cuda(), DType::F16), t(Device::cuda(), DType::F16);
  (void)other.step();  // finds the plans, which a capture refuses to do as well
  {
    const amp::Autocast region(DType::F16);  // and makes the compute copies, likewise
    (void)(*t.model)(t.images);
  }
  EXPECT_NE(error_of([&] { cuda::Graph graph([&] { (void)t.step(); }, 0); }).find("call it once before"),
            std::string::npos);
  (void)t.step();
}

TEST_F(GraphReplay, RefusesToMakeComputeCopiesInACapture) {
  Training other(Device::cuda(), DType::F16), t(Device::cuda(), DType::F16);
  (void)other.step();
  EXPECT_NE(error_of([&] { cuda::Graph graph([&] { (void)t.step(); }, 0); }).find("run the step once before"),
            std::string::npos);
}

TEST_F(GraphReplay, RefusesToGoOnWithoutItsParameters) {
  auto t = std::make_unique<Training>(Device::cuda(), DType::F16);
  cuda::Graph graph([&] { (void)t->step(); }, 1);
  graph.replay();
  synchronize(Device::cuda());
  t.reset();
  EXPECT_NE(error_of([&] { graph.replay(); }).find("capture again"), std::string::npos);
}

TEST_F(GraphReplay, ThrowsWhatKernelsReported) {
  Training t(Device::cuda(), DType::F32);
  cuda::Graph graph([&] { (void)t.step(); }, 1);
  const Tensor good = t.labels.clone();
  t.labels.copy_from(Tensor::from<int64_t>({0, 1, 2, 3, 99, 5, 6, 7}, {8}, Device::cuda()));
  const auto before = t.model->state();
  graph.replay();
  EXPECT_NE(error_of([&] {
              for (int i = 0; i < 1000000; ++i) graph.replay();  // the report arrives while it runs
            }).find("label 99 of sample 4"),
            std::string::npos);
  synchronize(Device::cuda());
  t.labels.copy_from(good);
  graph.replay();
  synchronize(Device::cuda());
}

}  // namespace
}  // namespace demi::test
#endif
