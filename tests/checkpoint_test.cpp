// Checkpoints: a resumed training goes on as the uninterrupted one, and what does not fit is refused whole.
#include <functional>

#include "demi/nn/safetensors.h"
#include "trained.h"

namespace demi::test {
namespace {

class Checkpoint : public OnDevice {};
DEMI_ON_ALL_DEVICES(Checkpoint);

TEST_P(Checkpoint, ResumedTrainingEqualsTheUninterruptedOne) {
  const Folder folder;
  for (const bool adam : {false, true})
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      const Trained::Kind kind{.adam = adam, .dtype = dtype};
      std::map<std::string, std::string> straight, half;
      {
        Trained t(device(), kind);
        t.steps(0, 10);
        half = t.everything();
        t.steps(10, 10);
        straight = t.everything();
      }
      {
        Trained t(device(), kind);
        t.steps(0, 10);
        t.save(folder / "a", {{"epoch", "7"}});
        EXPECT_EQ(differences(t.everything(), half), "") << "saving changes nothing";
      }
      // Other weights, another seed: all must come from the file.
      Trained t(device(), {.adam = adam, .dtype = dtype, .seed = 99});
      t.steps(50, 2);
      EXPECT_EQ(t.load(folder / "a"), (nn::Notes{{"epoch", "7"}}));
      EXPECT_EQ(differences(t.everything(), half), "");
      t.steps(10, 10);
      EXPECT_EQ(differences(t.everything(), straight), "") << (adam ? "Adam " : "SGD ") << name_of(dtype);
      EXPECT_NE(differences(half, straight), "");
      if (dtype == DType::F16) {
        EXPECT_EQ(t.scaler.get_scale(), 64);  // grown after 7 and 14 of 20 steps
        EXPECT_EQ(t.scaler.growth_tracker(), 6);
      }
    }
}

// 8 overflows from 65536, then 37 clean steps: scale and counter go on where they were.
TEST_P(Checkpoint, KeepsTheLossScale) {
  const Folder folder;
  const auto make = [&] { return amp::GradScaler({.init_scale = 65536, .growth_interval = 40}); };
  const Trained::Kind kind{.dtype = DType::F16};
  Trained t(device(), kind);
  t.scaler = make();
  t.steps(0, 8, INFINITY);
  t.steps(8, 37);
  t.save(folder / "a");
  Trained u(device(), kind);
  u.scaler = make();
  u.load(folder / "a");
  EXPECT_EQ(u.scaler.get_scale(), 256);
  EXPECT_EQ(u.scaler.growth_tracker(), 37);
  u.steps(45, 2);
  EXPECT_EQ(u.scaler.get_scale(), 256);
  u.steps(47, 1);
  EXPECT_EQ(u.scaler.get_scale(), 512);
}

// The saved betas hold, not those that the optimizer was built with: the next updates are the uninterrupted run's.
TEST_P(Checkpoint, RestoresTheNumbersOfTheUpdate) {
  const Folder folder;
  for (const bool adam : {true, false}) {
    const Trained::Kind saved{.adam = adam, .beta1 = 0.8, .beta2 = 0.99, .momentum = 0.5};
    Trained a(device(), saved);
    a.steps(0, 3);
    a.save(folder / "a");
    a.steps(3, 3);
    const auto straight = a.everything();
    Trained b(device(), {.adam = adam});
    b.load(folder / "a");
    b.steps(3, 3);
    EXPECT_EQ(differences(b.everything(), straight), "");
  }
}

// Whatever does not fit is named, and nothing is half-loaded.
TEST_P(Checkpoint, RefusesWhatDoesNotFit) {
  const Folder folder;
  const fs::path path = folder / "a";
  struct Case {
    Trained::Kind saved, loaded;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases{
      {{}, {.classes = 100}, {"'fc.bias' has shape [10], this model's is [100]"}},
      {{.adam = true}, {}, {"no 'sgd.dampening'", "of another optimizer"}},
      {{}, {.adam = true}, {"no 'adam.beta1'", "of another optimizer"}},
      {{}, {.momentum = 0}, {"'block0.moment0'"}},
      {{.momentum = 0}, {}, {"'block0.moment0'", "of another optimizer"}},
      {{.dtype = DType::F16}, {}, {"saved with a loss scaler", "resumed without one", "precision"}},
      {{}, {.dtype = DType::F16}, {"saved without a loss scaler", "resumed with one"}},
  };
  for (const Case& c : cases) {
    Trained(device(), c.saved).save(path);
    Trained t(device(), c.loaded);
    t.steps(0, 1);
    const auto before = t.everything();
    const std::string error = error_of([&] { t.load(path); });
    for (const std::string& part : c.parts) EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
    EXPECT_EQ(error.find(path.string()), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_EQ(differences(t.everything(), before), "") << error;
  }
}

// Files that are safetensors, but no whole checkpoint: what is missing is said before anything is loaded.
TEST_P(Checkpoint, RefusesIncompleteCheckpoints) {
  const Folder folder;
  const fs::path path = folder / "a";
  Trained t(device(), {.dtype = DType::F16});
  t.steps(0, 1);
  t.save(path, {{"epoch", "1"}});
  const nn::Safetensors good = nn::read_safetensors(path);
  t.steps(1, 1);
  const auto before = t.everything();
  const auto expect_error = [&](const std::string& what, const std::function<void(nn::Safetensors&)>& change) {
    nn::Safetensors bad = good;
    change(bad);
    nn::write_safetensors(path, bad);
    const std::string error = error_of([&] { t.load(path); });
    EXPECT_EQ(error.find(path.string()), 0u) << what << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_EQ(differences(t.everything(), before), "") << what;
  };
  for (const auto& [name, tensor] : good.tensors) expect_error(name, [&](auto& f) { f.tensors.erase(name); });
  for (const auto& [name, text] : good.metadata) {
    expect_error(name, [&](auto& f) { f.metadata.erase(name); });
    expect_error(name, [&](auto& f) { f.metadata[name] = "{"; });
    expect_error(name, [&](auto& f) { f.metadata[name] = "[1]"; });
  }
  expect_error("scale", [](auto& f) { f.metadata["scaler"] = R"({"scale":4})"; });
  expect_error("random", [](auto& f) { f.tensors["random.step"] = Tensor::zeros({2}, DType::F32); });
  expect_error("another", [](auto& f) { f.tensors["model.more"] = Tensor::zeros({2}, DType::F32); });
  write_file(path, read_file(fs::path(DEMI_SOURCE_DIR) / "tests/golden/op_cases.safetensors"));
  EXPECT_NE(error_of([&] { t.load(path); }).find("not a checkpoint"), std::string::npos);
  nn::write_safetensors(path, good);
  EXPECT_EQ(t.load(path).at("epoch"), "1");
}

}  // namespace
}  // namespace demi::test
