// demi_bench's harness: a wrong result is found before it is timed, shapes are understood, quantiles are right.
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>

#include "demi/bench/ceilings.h"
#include "demi/bench/runner.h"
#include "demi/bench/shapes.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/scale.h"
#include "demi/kernels/unary.h"
#include "devices.h"

namespace demi::test {
namespace {

using namespace bench;

class BenchHarness : public OnDevice {
 protected:
  Request request(const std::string& op, const std::string& shape, Precision precision = Precision::Fp32) const {
    return {.op = op, .shape = shape, .precision = precision, .device = device()};
  }
};
DEMI_ON_ALL_DEVICES(BenchHarness);

// y = 2 x over n elements, but multiplied by `factor` from element `from` on.
Spec doubling(int64_t n, DType dtype, double factor, int64_t from, bool by_rows) {
  Spec s;
  s.inputs = {{.shape = {n}, .dtype = dtype}};
  s.run = [=](Tensors& in) {
    Tensor y = kernels::scale(in[0], 2);
    const int64_t first = std::min(from, y.numel() - 1);
    if (factor == 1) return Tensors{y};
    Tensor part = y.narrow(first, y.numel() - first);
    part.copy_from(kernels::scale(part, factor));
    return Tensors{y};
  };
  s.reference = [](Tensors& in) { return Tensors{kernels::scale(in[0], 2)}; };
  s.by_rows = by_rows;
  s.bytes = 1;
  return s;
}

TEST_P(BenchHarness, FindsWrongResults) {
  for (const Precision precision : {Precision::Fp32, Precision::Fp16, Precision::Bf16}) {
    const Request r = request("double", "4096", precision);
    const auto verdict = [&](double factor, int64_t from) {
      return verify(doubling(4096, stored_dtype(precision), factor, from, true), r);
    };
    const Verdict right = verdict(1, 0);
    EXPECT_TRUE(right.passed()) << right.error.norm;
    EXPECT_EQ(right.footprint, 2 * 4096 * size_of(stored_dtype(precision)));
    EXPECT_FALSE(verdict(1.05, 0).passed());
    EXPECT_NEAR(verdict(1.5, 0).error.norm, 0.5, 0.01);
    EXPECT_FALSE(verdict(3, 4095).passed()) << "one element of 4096";
    EXPECT_LT(verdict(-1, 4000).error.norm, verdict(-1, 2000).error.norm);
    EXPECT_FALSE(verdict(kNaN, 4095).passed());
    EXPECT_FALSE(verdict(kInf, 4095).passed());
  }
}

// Of what is too large for FP64 on the CPU the last rows are compared, or the op runs on these rows.
TEST_P(BenchHarness, FindsWrongResultsOfLargeOnes) {
  const int64_t n = (int64_t{1} << 22) + (1 << 21);
  const Request r = request("double", std::to_string(n));
  for (const bool by_rows : {true, false}) {
    EXPECT_TRUE(verify(doubling(n, DType::F32, 1, 0, by_rows), r).passed());
    EXPECT_FALSE(verify(doubling(n, DType::F32, 3, n - 1, by_rows), r).passed()) << by_rows;
  }
  // In 16 bits CUDA compares all of it, with FP32.
  const Request half = request("double", std::to_string(n), Precision::Fp16);
  EXPECT_TRUE(verify(doubling(n, DType::F16, 1, 0, true), half).passed());
  EXPECT_EQ(verify(doubling(n, DType::F16, -1, 0, true), half).passed(), false);
}

TEST_P(BenchHarness, ChecksWhatIsPlanted) {
  const Op* op = find_op("finite_check");
  ASSERT_NE(op, nullptr);
  const Request r = request("finite_check", "1000", Precision::Fp16);
  Spec s = op->spec(r);
  EXPECT_TRUE(verify(s, r).passed());
  s.run = [](Tensors& in) { return Tensors{in[1]}; };  // says that all is finite
  EXPECT_FALSE(verify(s, r).passed());
  s.run = [](Tensors& in) {
    kernels::fill(in[1], 1);  // says that nothing is
    return Tensors{in[1]};
  };
  EXPECT_FALSE(verify(s, r).passed());
}

// Operands are such that an op which leaves alone what it should change is found, whatever the dtype's limit.
TEST_P(BenchHarness, FindsResultsLeftAsTheyWere) {
  int checked = 0;
  for (const Op& op : ops()) {
    const char* shape = op.kind == Kind::Elements || op.kind == Kind::Weights ? "4096" : "256x32";
    if (op.cuda_only || (op.kind == Kind::Matrix || op.kind == Kind::Convolution)) continue;
    if (op.kind == Kind::Images || op.kind == Kind::Records) continue;
    for (const Precision precision : op.precisions) {
      const Request r = request(op.name, shape, precision);
      const Spec s = op.spec(r);
      EXPECT_TRUE(verify(s, r).passed()) << op.name << " " << name_of(precision) << " " << verify(s, r).failure;
      Tensors in = draw(s, device(), 0);
      const Tensors out = s.run(in);
      for (size_t i = 0; i < out.size(); ++i) {
        for (size_t j = 0; j < in.size(); ++j) {
          if (!out[i].defined() || !in[j].defined() || !out[i].same_storage(in[j])) continue;
          Spec lazy = s;
          if (!s.reference) lazy.reference = s.run;
          lazy.run = [run = s.run, i, j](Tensors& operands) {
            const Tensor before = operands[j].clone();
            Tensors results = run(operands);
            results[i] = before;
            return results;
          };
          EXPECT_FALSE(verify(lazy, r).passed()) << op.name << " " << name_of(precision) << " result " << i;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 20);
}

// What a 16-bit op keeps in FP32 has FP32's limit, and a result that is not there is no right one.
TEST_P(BenchHarness, HoldsEachResultToItsDtype) {
  const Request r = request("two", "4096", Precision::Bf16);
  Spec s = doubling(4096, DType::BF16, 1, 0, true);
  const auto results = [](double factor, bool second) {
    return [=](Tensors& in) {
      const Tensor wide =
          kernels::cast(kernels::scale(in[0], 2), in[0].dtype() == DType::F64 ? DType::F64 : DType::F32);
      return Tensors{kernels::scale(in[0], 2), second ? kernels::scale(wide, factor) : Tensor()};
    };
  };
  s.reference = results(1, true);
  s.run = results(1, true);
  EXPECT_TRUE(verify(s, r).passed()) << verify(s, r).failure;
  s.run = results(1.001, true);
  EXPECT_NE(verify(s, r).failure.find("result 1: "), std::string::npos) << "of 0.1 %, which BF16 would not show";
  s.run = results(1, false);
  EXPECT_NE(error_of([&] { verify(s, r); }), "");
}

TEST_P(BenchHarness, ComparesUnlikeDtypes) {
  const Tensor y = tensor_of({1, 2, 2}, {3}, DType::F16, device());
  const auto to = [&](const std::vector<double>& values) { return tensor_of(values, {3}, DType::F64); };
  EXPECT_EQ(difference(y, to({1, 2, 2})).norm, 0);
  EXPECT_EQ(difference(y, to({1, 2, 2})).worst, 0);
  EXPECT_DOUBLE_EQ(difference(y, to({1, 2, 0})).norm, 2 / std::sqrt(5.0));
  EXPECT_DOUBLE_EQ(difference(y, to({1, 2, 0})).worst, 2 / std::sqrt(5.0 / 3));
  EXPECT_DOUBLE_EQ(difference(y, to({0, 2, 2})).worst, 1 / std::sqrt(8.0 / 3));
  EXPECT_EQ(difference(y, to({0, 0, 0})).norm, kInf);
  EXPECT_EQ(difference(y, to({1, 2, kNaN})).norm, kInf);
  const Tensor nan = tensor_of({kNaN}, {1}, DType::F32);
  EXPECT_EQ(difference(nan, nan).norm, kInf) << "two wrong ones make no right one";
  EXPECT_NE(error_of([&] { difference(y, tensor_of({1, 2}, {2}, DType::F64)); }), "");
}

// Operands of two sets differ, those of one are the same again, and an odd one is not aligned.
TEST_P(BenchHarness, DrawsOperands) {
  Spec s;
  s.inputs = {{.shape = {64, 4}, .dtype = DType::F32},
              {.shape = {64}, .dtype = DType::F16, .odd = true},
              {.shape = {5000}, .dtype = DType::I64, .fill = Input::Fill::Whole, .b = 10}};
  const Tensors a = draw(s, device(), 1), again = draw(s, device(), 1), b = draw(s, device(), 2);
  EXPECT_EQ(values_of(a[0]), values_of(again[0]));
  EXPECT_NE(values_of(a[0]), values_of(b[0]));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a[1].raw()) % 16, 2u);
  const std::vector<double> whole = values_of(a[2]);
  EXPECT_EQ(*std::min_element(whole.begin(), whole.end()), 0);
  EXPECT_EQ(*std::max_element(whole.begin(), whole.end()), 9);
}

// A name that ends in _odd is that of operands that are not aligned.
TEST_P(BenchHarness, OddShapesOfAllOpsStartUnaligned) {
  for (const Op& op : ops()) {
    if (op.cuda_only && device().is_cpu()) continue;
    const Request r = request(op.name, example_of(op.kind) + std::string("_odd"), op.precisions.front());
    Spec s;
    try {
      s = op.spec(r);
    } catch (const Error& e) {  // a step of a ladder that takes aligned operands alone
      EXPECT_NE(std::string(e.what()).find("_odd"), std::string::npos) << e.what();
      EXPECT_TRUE(op.cuda_only) << e.what();
      continue;
    }
    EXPECT_TRUE(std::any_of(s.inputs.begin(), s.inputs.end(), [](const Input& i) { return i.odd; })) << op.name;
  }
}

TEST_P(BenchHarness, TimesWhatIsCalled) {
  Tensor x = Tensor::zeros({1000}, DType::F32, device()), y = Tensor::zeros({1000}, DType::F32, device());
  int calls = 0;
  auto operands = std::make_shared<int>();
  const std::weak_ptr<int> alive = operands;
  Timed timed = prepare_timing({[&, operands] { ++calls, x.zero(); }, [&] { y.zero(); }}, device());
  operands.reset();
  EXPECT_GT(calls, 0);
  EXPECT_EQ(timed.calls % (device().is_cuda() ? 2 : 1), 0) << "sets take turns";
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(timed.seconds(), 0);
    EXPECT_LT(timed.seconds(), 1);
  }
  EXPECT_FALSE(alive.expired()) << "a graph replays on what is gone";
  timed = {};
  EXPECT_TRUE(alive.expired());
}

TEST(BenchTiming, Quantiles) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(quantile({5}, 0.9), 5);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.9), 9);
  EXPECT_DOUBLE_EQ(quantile({10, 0, 5}, 0.1), 1);
}

TEST(BenchShapes, AreUnderstood) {
  const auto extents = [](const std::string& shape, Kind kind) {
    return parse_extents({.op = "op", .shape = shape, .precision = Precision::Fp32, .device = {}}, kind);
  };
  EXPECT_EQ(extents("16777216", Kind::Elements).shape, Shape{16777216});
  EXPECT_EQ(extents("2x3x5x7", Kind::Images).shape, (Shape{2, 3, 5, 7}));
  EXPECT_FALSE(extents("2x3", Kind::Rows).odd);
  EXPECT_TRUE(extents("2x3_odd", Kind::Rows).odd);
  EXPECT_EQ(extents("131072x131072x64", Kind::Matrix).shape, (Shape{131072, 131072, 64}));
  const Convolution c =
      parse_convolution({.op = "op", .shape = "8x32x32x64_k128_r3_s2_odd", .precision = Precision::Fp16, .device = {}});
  EXPECT_EQ(c.x, (Shape{8, 32, 32, 64}));
  EXPECT_EQ(c.w, (Shape{128, 3, 3, 64}));
  EXPECT_EQ(c.y, (Shape{8, 16, 16, 128}));
  EXPECT_TRUE(c.odd);
}

// What Google Benchmark is told of a case that gives wrong results, and of the same case put right.
class Capture : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& reports) override { runs.insert(runs.end(), reports.begin(), reports.end()); }
  std::vector<Run> runs;
};

TEST_P(BenchHarness, FailsWhatIsWrong) {
  Runner runner(device(), 1 << 20);
  Op wrong{"wrong", Kind::Elements, {Precision::Fp32}, [](const Request&) {
             return doubling(4096, DType::F32, 1.01, 0, true);
           }};
  Op right{"right", Kind::Elements, {Precision::Fp32}, [](const Request&) {
             return doubling(4096, DType::F32, 1, 0, true);
           }};
  Op throwing{"throwing", Kind::Elements, {Precision::Fp32}, [](const Request&) -> Spec { fail("it cannot be"); }};
  for (const Op* op : {&wrong, &right, &throwing, &wrong}) {  // as repetitions in random order do
    const Case c{.request = request(op->name, "4096"), .op = op};
    benchmark::RegisterBenchmark(c.name().c_str(), [&runner, c](benchmark::State& state) { runner.run(c, state); })
        ->UseManualTime()
        ->Iterations(3);
  }
  Capture capture;
  benchmark::BenchmarkReporter* none = nullptr;
  benchmark::RunSpecifiedBenchmarks(&capture, none);
  benchmark::ClearRegisteredBenchmarks();
  EXPECT_EQ(runner.failures(), 2u);
  ASSERT_EQ(capture.runs.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const auto& counters = capture.runs[i].counters;
    EXPECT_EQ(counters.contains("median_us"), i == 1) << i;
    if (i == 1) {
      EXPECT_GT(static_cast<double>(counters.at("median_us")), 0);
    }
  }
}

}  // namespace
}  // namespace demi::test
