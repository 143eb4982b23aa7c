// Weights from PyTorch and back: models of state dicts made there give PyTorch's logits, a round trip keeps every bit,
// and what does not fit is named and changes nothing.
#include <functional>

#include "torch_models.h"

namespace demi::test {
namespace {

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

TEST(LinearOfImages, ChannelsMustDivideTheInputs) {
  EXPECT_NE(error_of([] { nn::Linear({.in = 10, .out = 2, .channels = 4}); }).find("no images of 4 channels"),
            std::string::npos);
}

}  // namespace
}  // namespace demi::test
