// cifar_resnet with weights from elsewhere: --load, --eval-only and --export, and what they refuse.
#include <sys/stat.h>

#include "demi/nn/resnet.h"
#include "demi/nn/torch_state.h"
#include "programs.h"

namespace demi::test {
namespace {

// All bytes of the tensors of a file, by name.
std::map<std::string, std::string> tensors_of(const fs::path& path) {
  std::map<std::string, std::string> all;
  for (const auto& [name, t] : nn::read_safetensors(path).tensors)
    all[name] = fmt::format("{} {} ", t.dtype(), t.shape()) + std::string(static_cast<const char*>(t.raw()), t.bytes());
  return all;
}

class WeightsProgram : public Programs {
 protected:
  // The two lines of --eval-only.
  static std::string tested(const Result& r) {
    const size_t at = r.out.find("test loss  ");
    EXPECT_NE(at, std::string::npos) << r.out;
    const std::string lines = at == std::string::npos ? "" : r.out.substr(at);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
    EXPECT_NE(lines.find("\ntest accuracy  "), std::string::npos) << lines;
    EXPECT_TRUE(lines.ends_with(" %\n")) << lines;
    return lines;
  }
  // A safetensors file of a ResNet-18 that was never trained.
  void write_weights(const std::string& file, const nn::ResNetConfig& config) const {
    nn::write_safetensors(work_ / file, {nn::to_torch(*nn::resnet(config)), {}, false});
  }
};
DEMI_ON_ALL_DEVICES(WeightsProgram);

TEST_P(WeightsProgram, ExportedWeightsTestAsTheyDidAfterTraining) {
  const Result r = train(tiny({"--precision", "fp32", "--save", "a.ckpt", "--export", "a.safetensors"}));
  const auto exported = tensors_of(work_ / "a.safetensors");
  EXPECT_EQ(exported.size(), 122u);
  EXPECT_TRUE(exported.at("conv1.weight").starts_with("fp32 [4, 3, 3, 3] "));
  EXPECT_TRUE(exported.at("fc.weight").starts_with("fp32 [10, 32] "));
  EXPECT_EQ(nn::read_safetensors(work_ / "a.safetensors").tensors.at("bn1.num_batches_tracked").item<int64_t>(), 40);

  const std::set<std::string> before = listing(work_);
  const Words model{"--data", "synthetic:160", "--width", "0.0625", "--precision", "fp32", "--deterministic"};
  const std::string loaded = tested(train(model + Words{"--load", "a.safetensors", "--eval-only"}));
  const double loss = std::stod(loaded.substr(loaded.find("loss") + 4)),
               accuracy = std::stod(loaded.substr(loaded.find("accuracy") + 8));
  EXPECT_NE(r.out.find(fmt::format("test {:5.2f} % (loss {:.4f})", accuracy, loss)), std::string::npos)
      << loaded << r.out;
  EXPECT_EQ(tested(train(model + Words{"--load", "a.ckpt", "--eval-only"})), loaded);
  EXPECT_EQ(tested(train({"--resume", "a.ckpt", "--eval-only", "--deterministic"})), loaded);
  EXPECT_EQ(listing(work_), before) << "writes nothing";
}

TEST_P(WeightsProgram, EvalOnlyConverts) {
  train(tiny({"--epochs", "1", "--save", "a.ckpt", "--export", "a.safetensors"}));
  const Words model{"--data", "synthetic:160", "--width", "0.0625", "--eval-only"};
  train(model + Words{"--load", "a.ckpt", "--export", "from_checkpoint"});
  train(model + Words{"--load", "a.safetensors", "--export", "again"});
  train({"--resume", "a.ckpt", "--eval-only", "--export", "resumed"});
  for (const char* name : {"from_checkpoint", "again", "resumed"})
    EXPECT_EQ(tensors_of(work_ / name), tensors_of(work_ / "a.safetensors")) << name;
  // Halves come out as FP32, and the DataParallel prefix goes.
  nn::Safetensors half;
  for (const auto& [name, t] : nn::read_safetensors(work_ / "a.safetensors").tensors)
    half.tensors["module." + name] = is_floating(t.dtype()) ? kernels::cast(t, DType::F16) : t;
  nn::write_safetensors(work_ / "half", half);
  train(model + Words{"--load", "half", "--export", "wide"});
  for (const auto& [name, t] : nn::read_safetensors(work_ / "wide").tensors) {
    EXPECT_EQ(t.dtype(), name.ends_with("num_batches_tracked") ? DType::I64 : DType::F32) << name;
    EXPECT_EQ(values_of(t), values_of(half.tensors.at("module." + name))) << name;
  }
}

// Weights to start from, for every precision of a comparison, and the training is theirs.
TEST_P(WeightsProgram, TrainsFromLoadedWeights) {
  write_weights("start", {.width = 0.0625});
  const Words flags = tiny({"--epochs", "1", "--load", "start", "--lr", "0"});
  train(flags + Words{"--compare", "fp32,fp16", "--export", "w"});
  const auto start = tensors_of(work_ / "start");
  EXPECT_FALSE(fs::exists(work_ / "w"));
  for (const char* name : {"w.fp32", "w.fp16"}) {
    const auto after = tensors_of(work_ / name);
    ASSERT_EQ(after.size(), start.size());
    for (const auto& [tensor, bytes] : after) {
      // At a learning rate of 0 only statistics move.
      const bool moves = tensor.find("running") != std::string::npos || tensor.ends_with("num_batches_tracked");
      EXPECT_EQ(bytes != start.at(tensor), moves) << name << " " << tensor;
    }
  }
  EXPECT_FALSE(tensors_of(work_ / "w.fp32") == tensors_of(work_ / "w.fp16"));
}

class BadWeights : public WeightsProgram {};
INSTANTIATE_TEST_SUITE_P(, BadWeights, ::testing::Values("cpu"), device_name);

TEST_P(BadWeights, Flags) {
  write_weights("w", {.width = 0.0625});
  const Words model{"--data", "synthetic:160", "--width", "0.0625"};
  expect_bad(model + Words{"--eval-only"}, {"--eval-only", "--load or --resume"});
  expect_bad(model + Words{"--load", "w", "--eval-only", "--out", "out"}, {"--eval-only", "leave out --out"});
  expect_bad(model + Words{"--load", "w", "--eval-only", "--save", "a"}, {"--eval-only", "leave out --save"});
  expect_bad(model + Words{"--load", "w", "--eval-only", "--compare", "fp32,fp16"}, {"--eval-only", "--compare"});
  expect_bad(model + Words{"--save", "a", "--export", "a"}, {"--export", "--save", " a"});
  expect_bad(model + Words{"--load"}, {"--load"});
  expect_bad(model + Words{"--inspect", "--export", "a"}, {"--inspect", "leave out --export"});
  expect_bad(model + Words{"--inspect", "--load", "w", "--eval-only"}, {"--inspect", "leave out --eval-only"});
  train(tiny({"--epochs", "1", "--save", "a.ckpt"}));
  expect_bad({"--resume", "a.ckpt", "--load", "w"}, {"--load", "--resume", "leave out one"});
}

TEST_P(BadWeights, OfAnotherModel) {
  const Words flags = tiny({"--load", "w", "--save", "a", "--export", "b"});
  struct Case {
    nn::ResNetConfig config;
    Words parts;
  };
  const std::vector<Case> cases{
      {{.depth = 34, .width = 0.0625}, {"no 'layer1.2.", "of another model"}},
      {{.depth = 50, .width = 0.0625},
       {"'layer1.0.conv1.weight' has shape [4, 4, 1, 1], this model's is [4, 4, 3, 3]"}},
      {{.width = 0.125}, {"'conv1.weight' has shape [8, 3, 3, 3], this model's is [4, 3, 3, 3]"}},
      {{.stem = nn::Stem::ImageNet, .width = 0.0625},
       {"'conv1.weight' has shape [4, 3, 7, 7], this model's is [4, 3, 3, 3]"}},
      {{.classes = 100, .width = 0.0625}, {"'fc.weight' has shape [100, 32], this model's is [10, 32]"}},
  };
  for (const Case& c : cases) {
    write_weights("w", c.config);
    expect_bad(flags, Words{"w: "} + c.parts);
    expect_bad({"--data", "synthetic:160", "--width", "0.0625", "--load", "w", "--eval-only"}, Words{"w: "} + c.parts);
  }
  write_weights("w", {.width = 0.0625});
  expect_bad(tiny({"--load", "w", "--depth", "34"}), {"w: ", "'layer1.2.conv1.weight', [4, 4, 3, 3]", "missing"});
}

TEST_P(BadWeights, DamagedFiles) {
  write_weights("good", {.width = 0.0625});
  const std::string bytes = read_file(work_ / "good");
  const Words flags = tiny({"--load", "w", "--export", "b"});
  expect_bad(flags, {"w: No such file"});
  const auto write = [&](const std::string& content) { std::ofstream(work_ / "w", std::ios::binary) << content; };
  for (const size_t length : {size_t{0}, size_t{7}, size_t{500}, bytes.size() / 2, bytes.size() - 1}) {
    write(bytes.substr(0, length));
    expect_bad(flags, {"w: "});
  }
  std::string flipped = bytes;
  flipped[flipped.size() / 2] ^= 4;
  write(flipped);
  expect_bad(flags, {"w: ", "checksum", "damaged"});
  write("no weights at all, but long enough");
  expect_bad(flags, {"w: ", "no safetensors file"});
  expect_bad(tiny({"--load", "."}), {".: ", "not a file"});
}

// What cannot be written is said before the training, and the file there before stays.
TEST_P(BadWeights, ExportThatCannotBeWritten) {
  fs::create_directory(work_ / "sub");
  expect_bad(tiny({"--export", "none/a"}), {"none/a", "cannot be written", "No such file or directory"});
  expect_bad(tiny({"--export", "sub"}), {"sub", "cannot be written", "it is a folder"});
  expect_bad(tiny({"--export", "none/a", "--compare", "fp32,fp16"}), {"none/a.fp32", "cannot be written"});
  write_weights("w", {.width = 0.0625});
  const std::string before = read_file(work_ / "w");
  expect_bad({"--data", "synthetic:160", "--width", "0.0625", "--load", "w", "--eval-only", "--export", "none/a"},
             {"none/a", "cannot be written"});
  expect_bad(tiny({"--epochs", "1", "--export", "w"}), {"w: cannot be written", "unchanged"}, {.largest_file = 50000});
  EXPECT_EQ(read_file(work_ / "w"), before);
}

// Whatever name a file goes by, an export does not replace a checkpoint, and nothing replaces what is no file.
TEST_P(WeightsProgram, OverwritesNeitherCheckpointsNorDevices) {
  train(tiny({"--epochs", "1", "--out", "out", "--save", "a.ckpt"}));
  fs::create_symlink("a.ckpt", work_ / "link");
  ASSERT_EQ(mkfifo((work_ / "pipe").c_str(), 0600), 0);
  const Words eval{"--eval-only", "--deterministic"};
  for (const char* name : {"a.ckpt", "./a.ckpt", "link", "out/../a.ckpt"}) {
    expect_bad(Words{"--resume", "a.ckpt", "--export", name} + eval, {"--export would overwrite", "--resume"});
    expect_bad(tiny({"--save", "a.ckpt", "--export", name}), {"--export would overwrite", "--save"});
  }
  expect_bad(tiny({"--out", "out", "--export", "out/last.ckpt"}), {"--export would overwrite", "--out"});
  for (const char* flag : {"--export", "--save"}) expect_bad(tiny({flag, "pipe"}), {"pipe", "a device or a pipe"});
  expect_bad(tiny({"--load", "pipe"}), {"pipe", "not a file"});
  // A link stays, and what it points to gets the new content.
  const std::string before = read_file(work_ / "a.ckpt");
  train(tiny({"--epochs", "1", "--seed", "5", "--save", "link"}));
  EXPECT_TRUE(fs::is_symlink(work_ / "link"));
  EXPECT_NE(read_file(work_ / "a.ckpt"), before);
}

TEST_P(WeightsProgram, SaysThatWeightsThatAreNoNumbersTestAsNothing) {
  auto net = nn::resnet({.width = 0.0625});
  auto weights = nn::to_torch(*net);
  for (const auto& [name, value] : {std::pair{"fc.bias", std::nan("")}, {"bn1.running_var", -1.0}}) {
    auto damaged = weights;
    damaged[name] = tensor_of(std::vector<double>(static_cast<size_t>(weights[name].numel()), value),
                              weights[name].shape(), DType::F32);
    nn::write_safetensors(work_ / "w", {damaged, {}, false});
    expect_bad({"--data", "synthetic:160", "--width", "0.0625", "--load", "w", "--eval-only"},
               {"w: the test loss is no number"});
  }
}

TEST_P(WeightsProgram, SaysWhenOutputOrExportsDoNotFit) {
  expect_bad(tiny({"--epochs", "1", "--export", "a"}), {"a: cannot be written", "File too large"},
             {.largest_file = 4096});
  const std::string command = fmt::format(
      "{}/cifar_resnet --device {} --data synthetic:160 --width 0.0625 --batch 16 --epochs 1 >/dev/full 2>{}",
      DEMI_PROGRAM_FOLDER, GetParam(), (work_ / "err").string());
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(read_file(work_ / "err").find("standard output: cannot be written"), std::string::npos);
}

}  // namespace
}  // namespace demi::test
