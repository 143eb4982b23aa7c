// The op cases recorded from PyTorch that lie in tests/golden pass on every device in every dtype.
#include "op_replay.h"

#include "devices.h"

namespace demi::test {
namespace {

class OpReplayTest : public OnDevice {};
DEMI_ON_ALL_DEVICES(OpReplayTest);

const std::vector<OpCaseFile>& golden() {
  static const std::vector<OpCaseFile> files{
      read_op_cases(DEMI_SOURCE_DIR "/tests/golden/op_cases.safetensors"),
      read_op_cases(DEMI_SOURCE_DIR "/tests/golden/elementwise_cases.safetensors")};
  return files;
}

void expect_all_pass(Device device, DType dtype) {
  const WithoutPlanSearch quick;
  for (const OpCaseFile& file : golden())
    for (const auto& c : file.cases) {
      const Verdict verdict = replay(file, c, device, dtype);
      EXPECT_EQ(verdict.kind, Verdict::Kind::Passed)
          << verdict.name << ": " << (verdict.notes.empty() ? "" : verdict.notes[0]);
    }
}

TEST_P(OpReplayTest, PassesInFp32) { expect_all_pass(device(), DType::F32); }
TEST_P(OpReplayTest, PassesInFp16) { expect_all_pass(device(), DType::F16); }
TEST_P(OpReplayTest, PassesInBf16) { expect_all_pass(device(), DType::BF16); }

// The judge itself: it must see what is wrong, not only let pass what is right.
OpCaseFile small_file(const char* attrs, std::vector<float> expected) {
  OpCaseFile file;
  file.content.tensors["x"] = Tensor::from<float>({-1, 2, 3}, {3});
  file.content.tensors["y"] = Tensor::from<float>(expected, {static_cast<int64_t>(expected.size())});
  file.content.tensors["g"] = Tensor::from<float>({1, 1, 1}, {3});
  file.content.tensors["dx"] = Tensor::from<float>({0, 1, 1}, {3});
  file.cases.push_back({{"op", "relu"},
                        {"name", "relu/test/0"},
                        {"attrs", nlohmann::json::parse(attrs)},
                        {"inputs", {{"x", "x"}}},
                        {"outputs", {{"y", "y"}}},
                        {"grad_output", "g"},
                        {"grads", {{"x", "dx"}}}});
  return file;
}

TEST(OpReplayJudge, NamesTensorErrorAndLimit) {
  OpCaseFile file = small_file("{}", {0, 2, 3});
  EXPECT_EQ(replay(file, file.cases[0], {}, DType::F32).kind, Verdict::Kind::Passed);
  file = small_file("{}", {0, 2, 3 + 0x1p-12f});
  Verdict verdict = replay(file, file.cases[0], {}, DType::F32);
  EXPECT_EQ(verdict.kind, Verdict::Kind::Failed);
  EXPECT_NE(verdict.notes.at(0).find("y: error 8.137e-05"), std::string::npos) << verdict.notes[0];
  EXPECT_NE(verdict.notes.at(0).find("limit 5.0e-06"), std::string::npos) << verdict.notes[0];
  file = small_file("{}", {0, 2, INFINITY});
  EXPECT_EQ(replay(file, file.cases[0], {}, DType::F32).kind, Verdict::Kind::Failed);
  file = small_file("{}", {0, 2});
  EXPECT_EQ(replay(file, file.cases[0], {}, DType::F32).kind, Verdict::Kind::Failed);
  file = small_file("{}", {0, 2, 3});
  file.content.tensors["dx"] = Tensor::from<float>({1, 1, 1}, {3});
  verdict = replay(file, file.cases[0], {}, DType::F32);
  EXPECT_EQ(verdict.notes.at(0).find("gradient of x: error 1.0"), 0u) << verdict.notes[0];
}

TEST(OpReplayJudge, SkipsWhatItDoesNotKnow) {
  OpCaseFile file = small_file("{}", {0, 2, 3});
  file.cases[0]["op"] = "frobnicate";
  const Verdict verdict = replay(file, file.cases[0], {}, DType::F32);
  EXPECT_EQ(verdict.kind, Verdict::Kind::Skipped);
  EXPECT_NE(verdict.notes.at(0).find("frobnicate"), std::string::npos);
}

}  // namespace
}  // namespace demi::test
