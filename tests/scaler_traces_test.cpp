// The traces recorded from PyTorch's GradScaler that lie in tests/golden are reproduced on every device.
#include "scaler_traces.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "devices.h"

namespace demi::test {
namespace {

using Json = nlohmann::json;

class ScalerTraces : public OnDevice {
 protected:
  void expect_all_pass(ReplayBy by, double limit = 2e-6) const {
    const auto traces = read_scaler_traces(DEMI_SOURCE_DIR "/tests/golden/grad_scaler_traces.json");
    EXPECT_EQ(traces.size(), 24u);
    for (size_t t = 0; t < traces.size(); ++t) EXPECT_EQ(replay(traces[t], device(), by, limit), "") << "trace " << t;
  }
  // One trace of three steps of three optimizers, by hand: whole numbers, absent gradients and hyperparameters.
  static Json by_hand() {
    return Json::parse(R"({"traces": [{
      "config": {"init_scale": 8, "growth_factor": 2, "backoff_factor": 0.5, "growth_interval": 2},
      "optimizers": [{"lr": 1}, {"lr": 1, "momentum": 0.5}, {"lr": 0.5, "weight_decay": 1}],
      "steps": [
        {"grads": [1, 2, null], "unscale": [false, true, false], "clip": null, "new_scale": null,
         "scale": 8, "tracker": 1, "weights": [0, -1, 1], "stepped": [true, true, null]},
        {"grads": ["-inf", 4, 1], "unscale": [true, true, true], "clip": 2, "new_scale": null,
         "scale": 4, "tracker": 0, "weights": [0, -4, 0], "stepped": [false, true, true]},
        {"grads": [3, "nan", null], "unscale": [false, false, true], "clip": null, "new_scale": 32,
         "scale": 32, "tracker": 0, "weights": [-3, -4, 0], "stepped": [true, false, null]}]}]})");
  }
  std::string replay_json(const Json& json) const {
    return replay(parse_scaler_traces(json.dump(), "here").at(0), device());
  }
};
DEMI_ON_ALL_DEVICES(ScalerTraces);

TEST_P(ScalerTraces, ArePyTorchs) { expect_all_pass(ReplayBy::Eager); }

TEST_P(ScalerTraces, ArePyTorchsFromGraphs) {
  if (device().is_cpu()) GTEST_SKIP() << "graphs are CUDA's";
  expect_all_pass(ReplayBy::Graph);
}

// Where a product and a sum can be rounded once, every rounding is PyTorch's.
TEST_P(ScalerTraces, ArePyTorchsBitForBit) {
#ifndef FP_FAST_FMAF
  if (device().is_cpu()) GTEST_SKIP() << "built without fused multiply-add";
#endif
  expect_all_pass(ReplayBy::Eager, 0);
}

TEST_P(ScalerTraces, OfThreeOptimizersByHand) { EXPECT_EQ(replay_json(by_hand()), ""); }

// The judge itself: every field that is not as recorded is seen, and named with both values.
TEST_P(ScalerTraces, NameTheFirstDifference) {
  const auto with = [&](size_t step, const char* pointer, const Json& value) {
    Json json = by_hand();
    json["traces"][0]["steps"][step][Json::json_pointer(pointer)] = value;
    return replay_json(json);
  };
  EXPECT_EQ(with(0, "/scale", 16), "step 0, scale: 8 here, 16 recorded");
  EXPECT_EQ(with(1, "/tracker", 1), "step 1, tracker: 0 here, 1 recorded");
  EXPECT_EQ(with(2, "/stepped/1", true), "step 2, stepped[1]: false here, true recorded");
  EXPECT_EQ(with(0, "/stepped/2", false), "step 0, stepped[2]: null here, false recorded");
  EXPECT_EQ(with(0, "/weights/1", -1.000003), "step 0, weights[1]: -1 here, -1.000003 recorded");
  EXPECT_EQ(with(0, "/weights/1", -1.0000015), "");
  EXPECT_NE(with(1, "/weights/1", -4.00002), "");
  EXPECT_EQ(with(1, "/weights/1", -4.000004), "");
  EXPECT_EQ(with(2, "/weights/2", 3e-6), "step 2, weights[2]: 0 here, 3e-06 recorded");
  EXPECT_EQ(with(2, "/weights/2", "nan"), "step 2, weights[2]: 0 here, nan recorded");
  EXPECT_EQ(with(2, "/new_scale", "inf").find("step 2, error: [grad_scaler] the scale is positive"), 0u);
  EXPECT_EQ(with(1, "/grads/0", 1).find("step 1, stepped[0]: true here, false recorded"), 0u);
}

TEST(ScalerTracesFile, SaysWhatIsWrongAndWhere) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_scaler_traces(text, "f"); }); };
  EXPECT_EQ(error(""), "f: no JSON: byte 1 is not what JSON has there");
  EXPECT_EQ(error(R"({"traces": [{]})"), "f: no JSON: byte 14 is not what JSON has there");
  EXPECT_EQ(error("1e999"), "f: no JSON: a number is too large");
  EXPECT_EQ(error("[]"), "f is an object, not array");
  EXPECT_EQ(error("{}"), "f has no 'traces'");
  EXPECT_EQ(error(R"({"traces": 1})"), "f, 'traces' is a list, not 1");
  EXPECT_EQ(error(R"({"traces": []})"), "f, 'traces' is empty");
  EXPECT_EQ(error(R"({"traces": [{"config": {}}]})"), "f, 'traces'[0] has no 'optimizers'");
  EXPECT_NE(error_of([] { read_scaler_traces("nowhere"); }).find("nowhere: no such file"), std::string::npos);
}

TEST(ScalerTracesFile, EveryMissingKeyAndWrongTypeIsNamed) {
  const Json golden = Json::parse(std::ifstream(DEMI_SOURCE_DIR "/tests/golden/grad_scaler_traces.json"));
  const auto error = [](const Json& trace) {
    return error_of([&] { parse_scaler_traces(Json{{"traces", {trace}}}.dump(), "f"); });
  };
  const Json trace = golden["traces"][0];
  ASSERT_EQ(error(trace), "");
  for (const char* part : {"", "/config", "/optimizers/0", "/steps/39"}) {
    const Json::json_pointer place(part);
    for (const auto& [key, value] : trace[place].items()) {
      const std::string quoted = "'" + key + "'";
      Json changed = trace;
      changed[place].erase(key);
      const bool optional = key == "momentum" || key == "weight_decay";
      EXPECT_EQ(error(changed).find(quoted) == std::string::npos, optional) << part << " " << key;
      for (const Json& wrong : {Json("x"), Json{{"a", 1}}, Json{1, 2, 3}}) {
        changed[place][key] = wrong;
        EXPECT_NE(error(changed).find(quoted), std::string::npos) << part << " " << key << ": " << wrong;
      }
    }
  }
}

}  // namespace
}  // namespace demi::test
