// numbers: What can a number of 16 bits hold?
//
// FP16 has 1 sign bit, 5 exponent bits e and 10 fraction bits f, and means
//   2^(e - 15) (1 + f / 1024)     normal, e from 1 to 30        2^-14 (f / 1024)     subnormal, e = 0
// BF16 has 8 exponent bits, as FP32, and 7 of fraction. Every number is rounded to the nearest that the format has.
//
// Predictions:
//   1e-7 does not vanish in FP16: it becomes the subnormal 2 x 2^-24 = 1.19e-7. 2e-8 does vanish.
//   65,519 fits, as 65,504, and 65,520 is infinity.
//   2,049 is not an FP16 number: from 2,048 on they are 2 apart. A tie goes to the even fraction.
//   BF16 reaches as far as FP32, but its numbers are 8 times as far apart as FP16's.
//   Of the 65,536 FP16 patterns 2,046 are subnormal, 1 in 32; the widening to FP32 and back loses none.
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "demi/examples/amp_lessons/lesson.h"
#include "demi/kernels/cast.h"

namespace demi::lessons {
namespace {

// x rounded to the dtype by the device, and widened again to be looked at.
std::vector<float> rounded(const std::vector<float>& x, DType dtype, Device device) {
  const Tensor wide = Tensor::from<float>(x, {static_cast<int64_t>(x.size())}, device);
  return kernels::cast(kernels::cast(wide, dtype), DType::F32).to_vector<float>();
}

float rounded(float x, DType dtype, Device device) { return rounded(std::vector<float>{x}, dtype, device)[0]; }

// The number that 16 bits mean.
float fp16_of(uint16_t bits) { return std::bit_cast<Half>(bits); }
float bf16_of(uint16_t bits) { return std::bit_cast<BFloat16>(bits); }

// The next larger number: one more in the bits is one step further, also across exponents.
float next(float x, DType dtype) {
  if (dtype == DType::F16) return fp16_of(Half(x).bits + 1);
  if (dtype == DType::BF16) return bf16_of(BFloat16(x).bits + 1);
  return std::nextafter(x, INFINITY);
}

const char* kind(float x, float smallest_normal) {
  if (std::isnan(x)) return "not a number";
  if (std::isinf(x)) return "infinity";
  if (x == 0) return "zero";
  return std::abs(x) < smallest_normal ? "subnormal" : "normal";
}

void limits(Lesson& lesson) {
  lesson.section("Three formats");
  Table table({"", "fp16", "bf16", "fp32"});
  const auto row = [&](const char* name, float fp16, float bf16, float fp32) {
    table.row(name, fmt::format("{:.6g}", fp16), fmt::format("{:.6g}", bf16), fmt::format("{:.6g}", fp32));
  };
  table.row("bits: sign + exponent + fraction", "1 + 5 + 10", "1 + 8 + 7", "1 + 8 + 23");
  row("largest number", fp16_of(0x7bff), bf16_of(0x7f7f), std::numeric_limits<float>::max());
  row("smallest normal number", fp16_of(0x0400), bf16_of(0x0080), std::numeric_limits<float>::min());
  row("smallest subnormal number", fp16_of(0x0001), bf16_of(0x0001), std::numeric_limits<float>::denorm_min());
  for (const float x : {1.0f, 2048.0f})
    row(x == 1 ? "from 1 to the next number" : "from 2,048 to the next number", next(x, DType::F16) - x,
        next(x, DType::BF16) - x, next(x, DType::F32) - x);
  lesson.show(table);
  lesson.predict("FP16's numbers are 2 apart from 2,048 on", next(2048, DType::F16) == 2050);
  lesson.predict("BF16's are 8 times as far apart as FP16's",
                 next(1, DType::BF16) - 1 == 8 * (next(1, DType::F16) - 1));
  const float far = rounded(1e38f, DType::BF16, lesson.device());
  lesson.predict("1e38 fits into BF16, to half a step", std::isfinite(far) && std::abs(far / 1e38f - 1) <= 0x1p-8f);
}

void edges(Lesson& lesson) {
  lesson.section("What becomes of a number");
  Table table({"number", "fp16", "kind in fp16", "bf16", "fp32"});
  for (const double x :
       {1e-8, 2e-8, 3e-8, 1e-7, 6e-5, 7e-5, 0.1, 1.0, 2049.0, 2051.0, 65504.0, 65519.0, 65520.0, 1e5, 1e38, 3.4e38}) {
    std::vector<std::string> cells{fmt::format("{:.6g}", x)};
    for (const DType dtype : {DType::F16, DType::BF16, DType::F32}) {
      const float y = rounded(static_cast<float>(x), dtype, lesson.device());
      cells.push_back(fmt::format("{:.7g}", y));
      if (dtype == DType::F16) cells.push_back(kind(y, 0x1p-14f));
    }
    table.add(cells);
  }
  lesson.show(table);
  const auto fp16 = [&](float x) { return rounded(x, DType::F16, lesson.device()); };
  lesson.predict("1e-7 becomes the subnormal 2 x 2^-24 in FP16", fp16(1e-7f) == 2 * 0x1p-24f);
  lesson.predict("2e-8 becomes 0: it is nearer to 0 than to 2^-24", fp16(2e-8f) == 0);
  lesson.predict("65,519 becomes 65,504", fp16(65519) == 65504);
  lesson.predict("65,520, halfway to where 65,536 would be, becomes infinity", std::isinf(fp16(65520)));
  lesson.predict("2,049 goes to 2,048 and 2,051 to 2,052: ties go to the even fraction",
                 fp16(2049) == 2048 && fp16(2051) == 2052);
}

void all_patterns(Lesson& lesson) {
  lesson.section("All 65,536 patterns of FP16");
  std::vector<Half> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  const Tensor halves = Tensor::from<Half>(all, {65536}, lesson.device());
  const Tensor wide = kernels::cast(halves, DType::F32);
  const std::vector<Half> back = kernels::cast(wide, DType::F16).to_vector<Half>();
  Table table({"kind", "patterns"});
  std::map<std::string, int> count;
  for (const Half x : all) ++count[kind(x, 0x1p-14f)];
  for (const char* of : {"zero", "subnormal", "normal", "infinity", "not a number"}) table.row(of, count[of]);
  int lost = 0;
  for (size_t i = 0; i < all.size(); ++i) lost += !std::isnan(float(all[i])) && all[i].bits != back[i].bits;
  lesson.show(table);
  lesson.predict("2,046 are subnormal", count["subnormal"] == 2 * 1023);
  lesson.predict("FP16 to FP32 and back gives the same bits for every number", lost == 0);
}

// The largest relative error of rounding what stays finite, measured on 2,048 FP32 numbers of each power of two.
void rounding_errors(Lesson& lesson) {
  Chart chart{.title = "What rounding to 16 bits costs",
              .x_label = "number",
              .y_label = "largest relative error",
              .log2_y = true};
  chart.log2_x = true;
  chart.bands = {{"zero", 0x1p-34, 0x1p-25},
                 {"subnormal", 0x1p-25, 0x1p-14},
                 {"FP16 normal", 0x1p-14, 0x1p16},
                 {"infinity", 0x1p16, 0x1p24}};
  for (const DType dtype : {DType::F16, DType::BF16}) {
    examples::Series series{.name = std::string(name_of(dtype)), .colour = static_cast<int>(chart.series.size())};
    for (int e = -34; e < 24; ++e) {
      std::vector<float> x;
      for (int i = 0; i < 2048; ++i) x.push_back(std::ldexp(1 + static_cast<float>(i) / 2048, e));
      const std::vector<float> y = rounded(x, dtype, lesson.device());
      float worst = std::isinf(y[0]) ? y[0] : 0;
      for (size_t i = 0; i < x.size(); ++i)
        if (std::isfinite(y[i])) worst = std::max(worst, std::abs(y[i] - x[i]) / x[i]);
      series.x.push_back(std::ldexp(1.0, e));
      series.y.push_back(worst);
    }
    chart.series.push_back(series);
  }
  lesson.save("numbers", chart);
}

}  // namespace

void numbers(Lesson& lesson) {
  limits(lesson);
  edges(lesson);
  all_patterns(lesson);
  rounding_errors(lesson);
}

}  // namespace demi::lessons
