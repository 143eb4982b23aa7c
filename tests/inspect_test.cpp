// amp::Inspector: that what it says about a step is what happened in it.
#include "demi/amp/inspect.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/elementwise.h"
#include "training.h"

namespace demi::test {
namespace {

using kernels::ValueCounts;

class CountValues : public OnDevice {};
DEMI_ON_ALL_DEVICES(CountValues);

// Against another way to the same numbers: frexp, and FP16's limits as real numbers.
TEST_P(CountValues, EveryMagnitudeInEveryDtype) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values{0.0,      -0.0,    inf,         -inf,        nan,         0x1p-149, -0x1p-140,
                             0x1p-126, 0x1p-26, 0x1p-25,     0x1.8p-25,   -0x1p-24,    1e-7,     2e-8,
                             6e-5,     0x1p-14, 0x1.ff8p-15, 0x1.ffcp-15, 0x1.ffap-15, 65504,    65519,
                             65520,    -65536,  1e30,        1.0,         -1.5,        0x1.8p127};
  for (const double v : noise(100000)) values.push_back(v * std::exp2(30 * noise(1, std::bit_cast<uint64_t>(v))[0]));
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const int64_t start : {0, 1, 7}) {
      const Tensor all = tensor_of(values, {std::ssize(values)}, dtype, device());
      const Tensor x = all.narrow(start, all.numel() - start);
      ValueCounts expected;
      for (const double v : values_of(x)) {
        const double m = std::fabs(v);
        if (m == 0) ++expected.kinds[ValueCounts::Zero];
        if (std::isinf(v)) ++expected.kinds[ValueCounts::Infinite];
        if (std::isnan(v)) ++expected.kinds[ValueCounts::NaN];
        if (m == 0 || !std::isfinite(v)) continue;
        ++expected.exponents[static_cast<size_t>(std::ilogb(m) - ValueCounts::kLowest)];
        if (m <= 0x1p-25) ++expected.kinds[ValueCounts::Fp16Zero];
        if (m > 0x1p-25 && m < 0x1.ffcp-15) ++expected.kinds[ValueCounts::Fp16Subnormal];  // above, 2^-14 is nearer
        if (m >= 65520) ++expected.kinds[ValueCounts::Fp16Overflow];
      }
      Tensor counters = kernels::value_counters(device());
      kernels::count_values(x, counters);
      const ValueCounts counts = kernels::read_counts(counters);
      EXPECT_EQ(counts.kinds, expected.kinds) << name_of(dtype);
      EXPECT_EQ(counts.exponents, expected.exponents) << name_of(dtype);
      EXPECT_EQ(counts.values(), x.numel());
      kernels::count_values(x, counters);  // adds to what is there
      EXPECT_EQ(kernels::read_counts(counters).values(), 2 * x.numel());
    }
  }
  Tensor none = kernels::value_counters(device());
  kernels::count_values(Tensor::zeros({0}, DType::F16, device()), none);
  EXPECT_EQ(kernels::read_counts(none).values(), 0);
  Tensor few = Tensor::zeros({3}, DType::I64, device());
  EXPECT_NE(
      error_of([&] { kernels::count_values(Tensor::zeros({1}, DType::F32, device()), few); }).find("[count_values]"),
      std::string::npos);
}

class Inspect : public OnDevice {
 protected:
  using Operations = std::vector<amp::Inspector::Operation>;
  static const amp::Inspector::Operation& find(const Operations& all, const std::string& layer, const std::string& op) {
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& o) { return o.layer == layer && o.op == op; });
    if (it == all.end()) throw Error(layer + " has no " + op);
    return *it;
  }
};
DEMI_ON_ALL_DEVICES(Inspect);

TEST_P(Inspect, TellsEachLayersDtypesCastsAndCopies) {
  Training t(device(), DType::F16);
  amp::Inspector inspector(*t.model);
  t.step();
  auto all = inspector.operations();
  int convolutions = 0, norms = 0;
  for (const auto& o : all) {
    if (o.op == "conv2d") {
      ++convolutions;
      EXPECT_EQ(o.inputs, (std::vector{DType::F16, DType::F16})) << o.layer;
      EXPECT_EQ(o.output, DType::F16) << o.layer;
      EXPECT_EQ(o.copies_used + o.copies_made, 1) << o.layer;
      EXPECT_EQ(o.gradient_dtype, DType::F16) << o.layer;
      EXPECT_EQ(o.weight_gradient_dtype, DType::F16) << o.layer;
    }
    if (o.op == "batch_norm") {
      ++norms;
      EXPECT_EQ(o.inputs[0], DType::F16) << o.layer;
      EXPECT_EQ(o.inputs[1], DType::F32) << o.layer;
      EXPECT_EQ(o.inputs[2], DType::F32) << o.layer;
      EXPECT_EQ(o.weight_gradient_dtype, DType::F32) << o.layer;
    }
    // The images come in FP32: the one cast of a step.
    EXPECT_EQ(o.casts, o.layer == "conv1" ? 1 : 0) << o.layer << " " << o.op;
    EXPECT_EQ(o.cast_bytes, o.layer == "conv1" ? 8 * 32 * 32 * 3 * (4 + 2) : 0) << o.layer << " " << o.op;
    EXPECT_EQ(o.calls, 1) << o.layer << " " << o.op;
  }
  EXPECT_EQ(convolutions, 20);
  EXPECT_EQ(norms, 20);
  EXPECT_EQ(find(all, "layer2.0.downsample.0", "conv2d").weight_gradient.values(), 16 * 8);
  EXPECT_EQ(find(all, "fc", "linear").inputs, (std::vector{DType::F16, DType::F16, DType::F32}));
  EXPECT_EQ(find(all, "(model)", "global_avg_pool").output, DType::F16);
  EXPECT_EQ(find(all, "(step)", "cross_entropy").inputs[0], DType::F16);
  EXPECT_EQ(find(all, "(step)", "cross_entropy").output, DType::F32);
  EXPECT_EQ(find(all, "conv1", "conv2d").copies_made, 1);  // the first that asked had all filters cast
  // From then on the optimizer's kernel writes the copies.
  inspector.reset();
  EXPECT_TRUE(inspector.operations().empty());
  t.step();
  for (const auto& o : inspector.operations()) EXPECT_EQ(o.copies_made, 0) << o.layer;
}

TEST_P(Inspect, SeesALayersOwnPrecisionAndTheCastsThatItCosts) {
  Training t(device(), DType::F16);
  t.model->classifier().set_precision(DType::F32);
  amp::Inspector inspector(*t.model);
  t.step();
  const auto all = inspector.operations();
  const auto& fc = find(all, "fc", "linear");
  EXPECT_EQ(fc.inputs, (std::vector{DType::F32, DType::F32, DType::F32}));
  EXPECT_EQ(fc.output, DType::F32);
  EXPECT_EQ(fc.casts, 2);  // of its input, and of the gradient on its way back
  EXPECT_EQ(fc.cast_bytes, 2 * 8 * 64 * (2 + 4));
}

TEST_P(Inspect, AddsUpCallsWithTheSameDtypes) {
  Training t(device(), DType::BF16);
  amp::Inspector inspector(*t.model);
  t.step();
  t.step();
  const auto all = inspector.operations();
  const auto& conv = find(all, "layer1.0.conv1", "conv2d");
  EXPECT_EQ(conv.calls, 2);
  EXPECT_EQ(conv.output, DType::BF16);
  EXPECT_EQ(conv.weight_gradient.values(), 2 * 8 * 3 * 3 * 8);
}

// What the histogram is for: at scale 1 the gradients lie in FP16's subnormals and below, at 2^16 among its normal
// numbers.
TEST_P(Inspect, ShowsThatTheScaleMovesGradientsIntoFp16sRange) {
  const auto share = [&](double scale) {
    Training t(device(), DType::F16, scale);
    amp::Inspector inspector(*t.model);
    t.step();
    ValueCounts sum;
    for (const auto& o : inspector.operations()) sum += o.gradient;
    return static_cast<double>(sum.kinds[ValueCounts::Fp16Subnormal]) / static_cast<double>(sum.values());
  };
  const double unscaled = share(1), scaled = share(65536);
  EXPECT_GT(unscaled, 0.05);
  EXPECT_LT(scaled, 0.01);
}

TEST_P(Inspect, NamesTheFirstValueThatIsNotFinite) {
  Training t(device(), DType::F16);
  {
    amp::Inspector inspector(*t.model);
    t.step();
    EXPECT_FALSE(inspector.first_non_finite());
    EXPECT_NE(inspector.table().find("every value was finite"), std::string::npos);
  }
  for (const auto& [name, p] : t.model->named_parameters()) {
    if (name != "layer2.0.conv2.weight") continue;
    Parameter weight = p;
    weight.assign(
        tensor_of(std::vector<double>(static_cast<size_t>(p.shape().numel()), 60000.0), p.shape(), DType::F32));
  }
  amp::Inspector inspector(*t.model);
  t.step();
  const auto first = inspector.first_non_finite();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->layer, "layer2.0.conv2");
  EXPECT_EQ(first->op, "conv2d");
  EXPECT_EQ(first->what, "the result");
  EXPECT_FALSE(first->in_backward);
  EXPECT_NE(inspector.table().find("the result of conv2d in layer2.0.conv2, forward"), std::string::npos);
}

TEST_P(Inspect, NamesTheFirstGradientThatIsNotFinite) {
  Training t(device(), DType::F16, 0x1p40);
  amp::Inspector inspector(*t.model);
  EXPECT_TRUE(t.step().skipped());
  const auto first = inspector.first_non_finite();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->op, "cross_entropy");  // its gradient is the first that must fit into 16 bits
  EXPECT_TRUE(first->in_backward);
}

// A cast to FP16 that overflows is told as such, not as a fault of the operation it was made for.
TEST_P(Inspect, NamesACastThatOverflows) {
  Training t(device(), DType::F16);
  std::vector<double> values = values_of(t.images);
  values[17] = 70000;
  t.images = tensor_of(values, t.images.shape(), DType::F32, device());
  amp::Inspector inspector(*t.model);
  t.step();
  const auto first = inspector.first_non_finite();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->layer, "conv1");
  EXPECT_EQ(first->what, "the cast of an input");
}

TEST_P(Inspect, ChangesNothingAndLeavesNothingBehind) {
  const WithoutPlanSearch deterministic;
  Training plain(device(), DType::F16), watched(device(), DType::F16);
  for (int i = 0; i < 2; ++i) plain.step();
  {
    const amp::Inspector inspector(*watched.model);
    for (int i = 0; i < 2; ++i) watched.step();
  }
  EXPECT_EQ(observer(), nullptr);
  EXPECT_EQ(watched.everything(), plain.everything());
}

TEST_P(Inspect, WritesJsonWithWholeHistograms) {
  Training t(device(), DType::F16);
  amp::Inspector inspector(*t.model);
  t.step();
  const auto json = nlohmann::json::parse(inspector.json());
  const auto all = inspector.operations();
  ASSERT_EQ(json["operations"].size(), all.size());
  EXPECT_TRUE(json["first_non_finite"].is_null());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& one = json["operations"][i];
    EXPECT_EQ(one["layer"], all[i].layer);
    int64_t sum = 0;
    for (const auto& [exponent, n] : one["gradient"]["exponents"].items()) sum += n.get<int64_t>();
    EXPECT_EQ(sum, all[i].gradient.finite_non_zero());
    EXPECT_NE(inspector.table().find(all[i].layer), std::string::npos);
  }
}

}  // namespace
}  // namespace demi::test
