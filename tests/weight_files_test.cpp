// load_weights and export_weights: files of PyTorch's weights, and the model's part of checkpoints.
#include "demi/nn/checkpoint.h"
#include "files.h"
#include "torch_models.h"

namespace demi::test {
namespace {

TEST(WeightFiles, ExportsAndLoads) {
  const Folder folder;
  const auto model = make("mixed"), other = make("mixed");
  nn::load_torch(*model, golden_state("mixed"));
  nn::export_weights(folder / "a", *model);
  EXPECT_TRUE(bytes_of(nn::read_safetensors(folder / "a").tensors) == bytes_of(golden_state("mixed")));
  nn::load_weights(folder / "a", *other);
  EXPECT_TRUE(bytes_of(other->state()) == bytes_of(model->state()));
}

TEST(WeightFiles, TheModelOfACheckpointIsWeightsToo) {
  const Folder folder;
  TorchTraining t(Device::cpu());
  t.step();
  amp::GradScaler scaler({.enabled = false});
  nn::save_checkpoint(folder / "a", {*t.model, *t.sgd, scaler}, {});
  const auto other = make("cifar");
  nn::load_weights(folder / "a", *other);
  EXPECT_TRUE(bytes_of(other->state()) == bytes_of(t.model->state()));
  const auto another = make("imagenet");
  const std::string before = bytes_of(another->state()),
                    error = error_of([&] { nn::load_weights(folder / "a", *another); });
  EXPECT_EQ(error,
            (folder / "a").string() + ": [load] 'conv1.weight' has shape [3, 3, 3, 3], this model's is [3, 7, 7, 3]");
  EXPECT_TRUE(bytes_of(another->state()) == before);
}

TEST(WeightFiles, ErrorsNameTheFile) {
  const Folder folder;
  const auto model = make("imagenet");
  nn::write_safetensors(folder / "a", {golden_state("cifar"), {}, false});
  const auto begins_with_file = [&](const std::string& error) { return error.starts_with((folder / "a").string()); };
  const std::string other = error_of([&] { nn::load_weights(folder / "a", *model); });
  EXPECT_TRUE(begins_with_file(other)) << other;
  EXPECT_NE(other.find("'conv1.weight' has shape [3, 3, 3, 3], this model's is [3, 3, 7, 7]"), std::string::npos);
  fs::resize_file(folder / "a", fs::file_size(folder / "a") - 1);
  const std::string damaged = error_of([&] { nn::load_weights(folder / "a", *model); });
  EXPECT_TRUE(begins_with_file(damaged)) << damaged;
  EXPECT_NE(damaged.find("damaged"), std::string::npos) << damaged;
}

}  // namespace
}  // namespace demi::test
