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
  const Words files{"out/metrics.jsonl", "out/command.txt", "out/last.ckpt", "out/report.html"};
  Words before;
  for (const std::string& file : files) before.push_back(read_file(work_ / file));
  train(tiny({"--inspect=15", "--out", "out", "--seed", "3"}));  // over the end of an epoch
  // Ctrl-C on the way to the step: nothing is saved either.
  const auto process = start("cifar_resnet", on_device(tiny({"--epochs", "3000", "--inspect=30000", "--out", "out"})));
  while (process->output_so_far().find("epoch") == std::string::npos && !process->ended())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  process->interrupt();
  EXPECT_EQ(process->wait().code, 130);
  for (size_t i = 0; i < files.size(); ++i) EXPECT_EQ(read_file(work_ / files[i]), before[i]) << files[i];
  EXPECT_FALSE(fs::exists(work_ / "cifar_resnet.ckpt"));
}

TEST_P(InspectProgram, RefusesStepsThatDoNotExistAndComparisons) {
  expect_bad(tiny({"--inspect=0"}), {"--inspect", "'0'"});
  expect_bad(tiny({"--inspect=41"}), {"--inspect=41", "40 steps"});
  expect_bad(tiny({"--inspect=11", "--stop-after", "1"}), {"--inspect=11", "10 steps"});
  expect_bad(tiny({"--inspect", "--compare", "fp32,fp16"}), {"--inspect", "leave out --compare"});
  expect_bad(tiny({"--inspect", "--out", "/proc/no"}), {"/proc/no"});
  expect_bad(tiny({"--inspect=3", "--inspect=4"}), {"--inspect"});
  expect_bad(tiny({"--inspect", "--save", "a"}), {"--inspect", "leave out --save"});
  expect_bad(tiny({"--inspect", "--out", "."}), {"inspect.json"}, {.largest_file = 20000});
}

TEST_P(InspectProgram, SaysThatDemiAmp0MadeItFp32) {
  const Result r = train(tiny({"--precision", "fp16", "--inspect"}), {.environment = {"DEMI_AMP=0"}});
  EXPECT_NE(r.out.find("step 1 in fp32 (DEMI_AMP=0)"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace demi::test
