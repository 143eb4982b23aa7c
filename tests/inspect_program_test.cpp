// cifar_resnet --inspect: the table, the file, and what it refuses.
#include "programs.h"

namespace demi::test {
namespace {

class InspectProgram : public Programs {};
DEMI_ON_ALL_DEVICES(InspectProgram);

TEST_P(InspectProgram, PrintsTheTableOfOneStepWritesItAsJsonAndEnds) {
  const Result r = train(tiny({"--precision", "fp16", "--inspect", "--out", "out"}));
  for (const char* part : {"step 1 in fp16, loss scale 65536", "layer4.1.conv2", "cross_entropy",
                           "casts: ", "gradients of activations: ", "every value was finite", "out/inspect.json"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  EXPECT_EQ(r.out.find("epoch 1/"), std::string::npos) << "it ends after the step: " << r.out;
  const auto json = nlohmann::json::parse(read_file(work_ / "out/inspect.json"));
  int convolutions = 0;
  for (const auto& o : json["operations"])
    if (o["op"] == "conv2d") {
      ++convolutions;
      EXPECT_EQ(o["inputs"], (nlohmann::json{"fp16", "fp16"})) << o["layer"];
    }
  EXPECT_EQ(convolutions, 20);
  EXPECT_EQ(listing(work_ / "out").size(), 1u) << "nothing but the file";
}

TEST_P(InspectProgram, LooksIntoALaterStepOfTheSameTraining) {
  const Result r = train(tiny({"--precision", "fp16", "--inspect=12", "--init-scale", "1e12"}));
  EXPECT_NE(r.out.find("step 12 in fp16"), std::string::npos) << r.out;  // of the second epoch
  EXPECT_NE(r.out.find("first value that is not finite: the gradient of input 0 of cross_entropy"), std::string::npos)
      << r.out;
  EXPECT_NE(r.out.find("(the step was skipped)"), std::string::npos) << r.out;
  EXPECT_TRUE(fs::exists(work_ / "inspect.json"));
}

TEST_P(InspectProgram, LeavesAnEarlierRunsResultsAlone) {
  train(tiny({"--epochs", "1", "--out", "out"}));
  const std::string metrics = read_file(work_ / "out/metrics.jsonl"), command = read_file(work_ / "out/command.txt");
  train(tiny({"--inspect", "--out", "out"}));
  EXPECT_EQ(read_file(work_ / "out/metrics.jsonl"), metrics);
  EXPECT_EQ(read_file(work_ / "out/command.txt"), command);
}

TEST_P(InspectProgram, RefusesStepsThatDoNotExistAndComparisons) {
  expect_bad(tiny({"--inspect=0"}), {"--inspect", "'0'"});
  expect_bad(tiny({"--inspect=41"}), {"--inspect=41", "40 steps"});
  expect_bad(tiny({"--inspect=11", "--stop-after", "1"}), {"--inspect=11", "10 steps"});
  expect_bad(tiny({"--inspect", "--compare", "fp32,fp16"}), {"--inspect", "leave out --compare"});
  expect_bad(tiny({"--inspect", "--out", "/proc/no"}), {"/proc/no"});
}

}  // namespace
}  // namespace demi::test
