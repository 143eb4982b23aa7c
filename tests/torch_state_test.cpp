// Weights from PyTorch and back: models of state dicts made there give PyTorch's logits, a round trip keeps every bit,
// what does not fit is named and changes nothing, and batch norm counts what PyTorch counts.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <set>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/permute.h"
#include "demi/nn/checkpoint.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/resnet.h"
#include "demi/nn/safetensors.h"
#include "demi/nn/torch_state.h"
#include "demi/optim/sgd.h"
#include "devices.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

namespace demi::test {
namespace {

namespace fs = std::filesystem;
using nn::StateDict;

const nn::Safetensors& golden() {
  static const nn::Safetensors file =
      nn::read_safetensors(fs::path(DEMI_SOURCE_DIR) / "tests/golden/torch_state.safetensors");
  return file;
}

// One model of the golden file.
StateDict golden_state(const std::string& model) {
  StateDict state;
  for (const auto& [name, t] : golden().tensors)
    if (name.starts_with(model + ".")) state[name.substr(model.size() + 1)] = t;
  return state;
}

std::unique_ptr<nn::Module> make(const std::string& model) {
  if (model != "mixed")
    return nn::resnet({.depth = 18,
                       .classes = 7,
                       .stem = model == "cifar" ? nn::Stem::Cifar : nn::Stem::ImageNet,
                       .width = 3.0 / 64});
  using namespace nn;
  return std::make_unique<Sequential>(
      std::make_unique<Conv2d>(Conv2dConfig{.in = 3, .out = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = false}),
      std::make_unique<BatchNorm2d>(BatchNorm2dConfig{.channels = 6, .affine = false}), std::make_unique<ReLU>(),
      std::make_unique<Conv2d>(Conv2dConfig{.in = 6, .out = 8, .kernel = 3, .groups = 2}),
      std::make_unique<MaxPool2d>(), std::make_unique<Flatten>(),
      std::make_unique<Linear>(LinearConfig{.in = 8 * 8 * 10, .out = 7, .channels = 8}));
}
const std::vector<std::string> kModels{"cifar", "imagenet", "mixed"};

std::vector<double> logits_of(nn::Module& model, Device device) {
  model.eval();
  const NoGrad off;
  return values_of(model(kernels::to_channels_last(golden().tensors.at("input")).to(device)).tensor());
}

std::string bytes_of(const StateDict& state) {
  std::string all;
  for (const auto& [name, t] : state) {
    all += fmt::format("{} {} {} ", name, t.dtype(), t.shape());
    all.append(static_cast<const char*>(t.raw()), t.bytes());
  }
  return all;
}

class TorchState : public OnDevice {
  const WithoutPlanSearch quick_;  // and the same plans in every run
};
DEMI_ON_ALL_DEVICES(TorchState);

TEST_P(TorchState, GivesPyTorchsLogits) {
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const auto model = make(name);
    model->to(device());
    nn::load_torch(*model, golden_state(name));
    const std::vector<double> expected = values_of(golden().tensors.at(name + " logits"));
    double largest = 0;
    for (const double e : expected) largest = std::max(largest, std::fabs(e));
    expect_close(logits_of(*model, device()), expected, 0, 1e-4 * largest, name);
  }
}

TEST_P(TorchState, RoundTripsKeepEveryBit) {
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const StateDict there = golden_state(name);
    const auto model = make(name), other = make(name);
    model->to(device());
    nn::load_torch(*model, there);
    EXPECT_TRUE(bytes_of(nn::to_torch(*model)) == bytes_of(there));
    // And from demi: what was never PyTorch's comes back as it was.
    const auto state = other->state();
    nn::load_torch(*model, nn::to_torch(*other));
    EXPECT_TRUE(bytes_of(model->state()) == bytes_of(state));
  }
}

TEST_P(TorchState, AnExportIsACopy) {
  const auto model = make("mixed");
  model->to(device());
  nn::load_torch(*model, golden_state("mixed"));
  StateDict state = nn::to_torch(*model);
  for (auto& [name, t] : state) t.zero();
  EXPECT_TRUE(bytes_of(nn::to_torch(*model)) == bytes_of(golden_state("mixed")));
}

TEST_P(TorchState, TakesEveryFloatingDtype) {
  const StateDict there = golden_state("mixed");
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
    StateDict cast, rounded;
    for (const auto& [name, t] : there) {
      cast[name] = is_floating(t.dtype()) ? kernels::cast(t, dtype) : kernels::cast(t, DType::I32);
      rounded[name] = kernels::cast(cast[name], t.dtype());
    }
    const auto model = make("mixed");
    model->to(device());
    nn::load_torch(*model, cast);
    EXPECT_TRUE(bytes_of(nn::to_torch(*model)) == bytes_of(rounded)) << name_of(dtype);
  }
}

TEST_P(TorchState, TakesOffDataParallelsPrefix) {
  StateDict wrapped;
  for (const auto& [name, t] : golden_state("cifar")) wrapped["module." + name] = t;
  const auto model = make("cifar");
  model->to(device());
  nn::load_torch(*model, wrapped);
  EXPECT_TRUE(bytes_of(nn::to_torch(*model)) == bytes_of(golden_state("cifar")));
  // Not where only some have it, nor where the model's own names begin so.
  wrapped["conv1.weight"] = wrapped.extract("module.conv1.weight").mapped();
  EXPECT_NE(error_of([&] { nn::load_torch(*model, wrapped); }).find("missing"), std::string::npos);
  struct Wrapper : nn::Module {
    nn::Linear module{{.in = 2, .out = 1}};
    Wrapper() { register_modules({{"module", module}}); }
    Variable forward(const Variable& x) override { return module(x); }
  };
  Wrapper own, other;
  for (const char* prefix : {"", "module."}) {
    StateDict state;
    for (const auto& [name, t] : nn::to_torch(other)) state[prefix + name] = t;
    nn::load_torch(own, state);
    EXPECT_TRUE(bytes_of(nn::to_torch(own)) == bytes_of(nn::to_torch(other)));
  }
}

TEST_P(TorchState, StartsCountsThatAnOldFileLacks) {
  StateDict old = golden_state("cifar");
  std::erase_if(old, [](const auto& entry) { return entry.first.ends_with("num_batches_tracked"); });
  const auto model = make("cifar");
  model->to(device());
  nn::load_torch(*model, golden_state("cifar"));
  nn::load_torch(*model, old);
  for (const auto& [name, t] : nn::to_torch(*model)) {
    if (name.ends_with("num_batches_tracked")) {
      EXPECT_EQ(t.item<int64_t>(), 0) << name;
    }
  }
}

// Whatever does not fit is named, with shapes as PyTorch prints them, and nothing is half-loaded.
TEST_P(TorchState, RefusesWhatDoesNotFit) {
  struct Case {
    const char* what;
    std::function<void(StateDict&)> change;
    std::vector<std::string> parts;
  };
  const auto zeros = [](const Shape& shape, DType dtype = DType::F32) { return Tensor::zeros(shape, dtype); };
  const std::vector<Case> cases{
      {"missing", [](auto& s) { s.erase("layer2.0.conv1.weight"); }, {"'layer2.0.conv1.weight'", "missing"}},
      {"missing statistics", [](auto& s) { s.erase("bn1.running_var"); }, {"'bn1.running_var'", "missing"}},
      {"missing bias", [](auto& s) { s.erase("fc.bias"); }, {"'fc.bias'", "[7]", "missing"}},
      {"unknown",
       [&](auto& s) {
         s["layer2.2.conv1.weight"] = zeros({6, 6, 3, 3});
       },
       {"no 'layer2.2.conv1.weight'", "[6, 6, 3, 3]"}},
      {"unknown count",
       [&](auto& s) { s["fc.num_batches_tracked"] = zeros({}, DType::I64); },
       {"no 'fc.num_batches_tracked'"}},
      {"filter",
       [&](auto& s) {
         s["conv1.weight"] = zeros({4, 3, 3, 3});
       },
       {"'conv1.weight'", "[4, 3, 3, 3]", "[3, 3, 3, 3]"}},
      {"downsample",
       [&](auto& s) {
         s["layer2.0.downsample.0.weight"] = zeros({6, 4, 1, 1});
       },
       {"'layer2.0.downsample.0.weight' has shape [6, 4, 1, 1]", "[6, 3, 1, 1]"}},
      {"demi's own layout",
       [](auto& s) { s["layer2.0.conv2.weight"] = kernels::to_channels_last(s["layer2.0.conv2.weight"]); },
       {"'layer2.0.conv2.weight' has shape [6, 3, 3, 6]", "[6, 6, 3, 3]"}},
      {"classes",
       [&](auto& s) {
         s["fc.weight"] = zeros({10, 24});
       },
       {"'fc.weight' has shape [10, 24]", "[7, 24]"}},
      {"statistics", [&](auto& s) { s["bn1.running_mean"] = zeros({4}); }, {"'bn1.running_mean' has shape [4]", "[3]"}},
      {"count of another shape",
       [&](auto& s) { s["bn1.num_batches_tracked"] = zeros({1}, DType::I64); },
       {"'bn1.num_batches_tracked' has shape [1]", "[]"}},
      {"real count",
       [&](auto& s) { s["bn1.num_batches_tracked"] = zeros({}); },
       {"'bn1.num_batches_tracked' holds fp32", "a count"}},
      {"integers", [&](auto& s) { s["fc.bias"] = zeros({7}, DType::I64); }, {"'fc.bias' holds int64", "reals"}},
      {"bytes",
       [&](auto& s) {
         s["conv1.weight"] = zeros({3, 3, 3, 3}, DType::U8);
       },
       {"'conv1.weight' holds uint8", "reals"}},
      {"nothing", [](auto& s) { s.clear(); }, {"'conv1.weight'", "missing"}},
  };
  const auto model = make("cifar");
  model->to(device());
  const std::string before = bytes_of(nn::to_torch(*model));
  for (const Case& c : cases) {
    StateDict state = golden_state("cifar");
    c.change(state);
    const std::string error = error_of([&] { nn::load_torch(*model, state); });
    for (const std::string& part : c.parts)
      EXPECT_NE(error.find(part), std::string::npos) << c.what << ", no " << part << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_TRUE(bytes_of(nn::to_torch(*model)) == before) << c.what;
  }
  nn::load_torch(*model, golden_state("cifar"));
  EXPECT_FALSE(bytes_of(nn::to_torch(*model)) == before);
}

// A training step in FP16 on the golden images; a scale that overflows makes it a skipped one.
struct Training {
  explicit Training(Device device)
      : model(make("cifar")),
        images(kernels::to_channels_last(golden().tensors.at("input")).to(device)),
        labels(Tensor::from<int64_t>({1, 3}, {2}, device)) {
    model->to(device);
    sgd = std::make_unique<optim::SGD>(model->parameters(), optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
  }
  void step(double scale = 1024) {
    amp::GradScaler scaler({.init_scale = scale});
    model->train();
    sgd->zero_grad();
    Variable loss;
    {
      const amp::Autocast region(DType::F16);
      loss = nn::cross_entropy((*model)(images), labels);
    }
    backward(scaler.scale(loss));
    scaler.step(*sgd);
  }
  static constexpr double kOverflow = 0x1p120;

  std::unique_ptr<nn::Module> model;
  std::unique_ptr<optim::SGD> sgd;
  Tensor images, labels;
};

TEST_P(TorchState, ALoadRefreshesCopiesAndShadows) {
  const StateDict weights = golden_state("cifar");
  const auto fresh = make("cifar");
  fresh->to(device());
  nn::load_torch(*fresh, weights);
  const amp::Autocast region(DType::F16);
  const std::vector<double> expected = logits_of(*fresh, device());

  Training t(device());
  t.step();  // compute copies and shadows exist from here on
  EXPECT_NE(logits_of(*t.model, device()), expected);
  nn::load_torch(*t.model, weights);
  EXPECT_EQ(logits_of(*t.model, device()), expected);
  t.step(Training::kOverflow);
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

TEST_P(TorchState, BatchNormCountsTrainingBatches) {
  Training t(device());
  EXPECT_EQ(count_of(*t.model), 0);
  t.step();
  t.step();
  EXPECT_EQ(count_of(*t.model), 2);
  logits_of(*t.model, device());
  EXPECT_EQ(count_of(*t.model), 2) << "eval";
  t.step(Training::kOverflow);
  EXPECT_EQ(count_of(*t.model), 2) << "skipped";
  t.step();
  EXPECT_EQ(count_of(*t.model), 3);
  // Past what FP32 could count.
  StateDict state = nn::to_torch(*t.model);
  const int64_t large = (int64_t{1} << 53) + 1;
  for (auto& [name, count] : state)
    if (name.ends_with("num_batches_tracked")) count = Tensor::scalar<int64_t>(large);
  nn::load_torch(*t.model, state);
  t.step(Training::kOverflow);
  EXPECT_EQ(count_of(*t.model), large);
  t.step();
  EXPECT_EQ(count_of(*t.model), large + 1);
}

// Every micro-batch of a window is counted, and a skipped window takes them all back.
TEST_P(TorchState, BatchNormCountsMicroBatches) {
  Training t(device());
  t.step();
  for (const double scale : {1024.0, Training::kOverflow}) {
    (*t.model)(t.images);  // one more forward before the step
    t.step(scale);
    EXPECT_EQ(count_of(*t.model), 3);
  }
}

#if DEMI_CUDA
TEST(TorchStateGraph, ReplaysCountTheirBatches) {
  if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
  const WithoutPlanSearch quick;
  Training t(Device::cuda());
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
  scaler.update(Training::kOverflow);
  graph.replay();
  EXPECT_EQ(count_of(*t.model), 5) << "skipped";
}
#endif

class WeightFiles : public ::testing::Test {
 protected:
  WeightFiles() {
    std::string name = (fs::temp_directory_path() / "demi_weights_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~WeightFiles() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(WeightFiles, ExportsAndLoads) {
  const auto model = make("mixed"), other = make("mixed");
  nn::load_torch(*model, golden_state("mixed"));
  nn::export_weights(folder_ / "a", *model);
  EXPECT_TRUE(bytes_of(nn::read_safetensors(folder_ / "a").tensors) == bytes_of(golden_state("mixed")));
  nn::load_weights(folder_ / "a", *other);
  EXPECT_TRUE(bytes_of(other->state()) == bytes_of(model->state()));
}

TEST_F(WeightFiles, TheModelOfACheckpointIsWeightsToo) {
  Training t(Device::cpu());
  t.step();
  amp::GradScaler scaler({.enabled = false});
  nn::save_checkpoint(folder_ / "a", {*t.model, *t.sgd, scaler}, {});
  const auto other = make("cifar");
  nn::load_weights(folder_ / "a", *other);
  EXPECT_TRUE(bytes_of(other->state()) == bytes_of(t.model->state()));
  const auto another = make("imagenet");
  const std::string before = bytes_of(another->state()),
                    error = error_of([&] { nn::load_weights(folder_ / "a", *another); });
  EXPECT_EQ(error,
            (folder_ / "a").string() + ": [load] 'conv1.weight' has shape [3, 3, 3, 3], this model's is [3, 7, 7, 3]");
  EXPECT_TRUE(bytes_of(another->state()) == before);
}

TEST_F(WeightFiles, ErrorsNameTheFile) {
  const auto model = make("imagenet");
  nn::write_safetensors(folder_ / "a", {golden_state("cifar"), {}, false});
  const auto begins_with_file = [&](const std::string& error) { return error.starts_with((folder_ / "a").string()); };
  const std::string other = error_of([&] { nn::load_weights(folder_ / "a", *model); });
  EXPECT_TRUE(begins_with_file(other)) << other;
  EXPECT_NE(other.find("'conv1.weight' has shape [3, 3, 3, 3], this model's is [3, 3, 7, 7]"), std::string::npos);
  fs::resize_file(folder_ / "a", fs::file_size(folder_ / "a") - 1);
  const std::string damaged = error_of([&] { nn::load_weights(folder_ / "a", *model); });
  EXPECT_TRUE(begins_with_file(damaged)) << damaged;
  EXPECT_NE(damaged.find("damaged"), std::string::npos) << damaged;
}

TEST(LinearOfImages, ChannelsMustDivideTheInputs) {
  EXPECT_NE(error_of([] { nn::Linear({.in = 10, .out = 2, .channels = 4}); }).find("no images of 4 channels"),
            std::string::npos);
}

}  // namespace
}  // namespace demi::test
