// sums: Why are sums held in FP32?
//
// A sum grows, its terms do not. Once the sum's numbers lie further apart than twice a term, adding the term changes
// nothing: in FP16 that takes 2,048 ones.
//
// Predictions:
//   4,096 ones added one by one in FP16 are 2,048, in BF16 256: 1 + 10 and 1 + 7 bits of fraction are full.
//   With the sum in FP32 they are 4,096; also in pairs, or when what was lost is carried along (Kahan), without FP32.
//   A product of two FP16 numbers has at most 22 bits, so it is exact in FP32.
//   A dot product of positive numbers, summed in FP16, never passes 2,048: of 32,768 terms most is lost. Pairs and
//   Kahan stay under 1 %, and the FP32 sum costs one rounding. demi's matrix product is such a sum, on every device.
#include <cmath>

#include "demi/core/random.h"
#include "demi/examples/amp_lessons/lesson.h"
#include "demi/kernels/matmul.h"
#include "demi/kernels/reduce.h"

namespace demi::lessons {
namespace {

// a + b as a 16-bit unit gives it: exact, then rounded once. (Rounding to FP32 first changes nothing.)
template <typename T>
T plus(T a, T b) {
  return T(float(a) + float(b));
}

template <typename T>
float one_by_one(const std::vector<T>& terms) {
  T sum(0);
  for (const T x : terms) sum = plus(sum, x);
  return sum;
}

// Neighbours first, then the sums of neighbours: the two that meet are about as large.
template <typename T>
float in_pairs(std::vector<T> terms) {
  for (; terms.size() > 1; terms.resize((terms.size() + 1) / 2))
    for (size_t i = 0; i < terms.size(); i += 2)
      terms[i / 2] = i + 1 < terms.size() ? plus(terms[i], terms[i + 1]) : terms[i];
  return terms.empty() ? T(0) : terms[0];
}

// Kahan, 1965: a second number carries what rounding cut off, into the next addition.
template <typename T>
float with_carry(const std::vector<T>& terms) {
  T sum(0), carry(0);
  for (const T x : terms) {
    const T term = plus(x, carry), bigger = plus(sum, term);
    carry = plus(term, T(float(sum) - float(bigger)));  // of the term, what did not arrive in the sum
    sum = bigger;
  }
  return sum;
}

void ones(Lesson& lesson) {
  lesson.section("4,096 ones");
  const std::vector<Half> fp16(4096, Half(1));
  const std::vector<BFloat16> bf16(4096, BFloat16(1));
  Table table({"the sum", "terms fp16", "terms bf16"});
  table.row("one by one, in the terms' format", one_by_one(fp16), one_by_one(bf16));
  table.row("in pairs, in the terms' format", in_pairs(fp16), in_pairs(bf16));
  table.row("with Kahan's carry, in the terms' format", with_carry(fp16), with_carry(bf16));
  const auto sum = [&](const auto& terms) {  // demi's own, which adds in FP32
    const Tensor x = Tensor::from(terms, {4096}, lesson.device());
    return kernels::reduce(kernels::ReduceOp::Sum, x, {}, false, DType::F32).item<float>();
  };
  table.row("demi's sum of a tensor, in fp32", sum(fp16), sum(bf16));
  lesson.show(table);
  lesson.predict("one by one FP16 stops at 2,048 and BF16 at 256", one_by_one(fp16) == 2048 && one_by_one(bf16) == 256);
  lesson.predict("in pairs, with the carry, and in FP32 all are counted",
                 in_pairs(fp16) == 4096 && with_carry(fp16) == 4096 && sum(fp16) == 4096 && in_pairs(bf16) == 4096 &&
                     with_carry(bf16) == 4096 && sum(bf16) == 4096);
}

// Uniform in [0, 1), rounded to FP16.
std::vector<Half> random_halves(int64_t count, uint64_t seed) {
  std::vector<Half> x;
  for (int64_t i = 0; i < count; ++i) x.push_back(Half(Philox(seed, 0, static_cast<uint64_t>(i)).uniform(0)));
  return x;
}

void products(Lesson& lesson) {
  lesson.section("Products of two FP16 numbers");
  Table table({"squared", "in fp16", "in fp32"});
  for (const Half x : {Half(300), Half(100), Half(0.1f), Half(2e-4f), Half(1e-4f)}) {
    const float exact = float(x) * float(x);
    table.row(float(x), fmt::format("{:.6g}", float(Half(exact))), fmt::format("{:.6g}", exact));
  }
  lesson.show(table);
  const std::vector<Half> a = random_halves(100000, lesson.seed()), b = random_halves(100000, lesson.seed() + 1);
  int inexact = 0;
  for (size_t i = 0; i < a.size(); ++i) inexact += double(float(a[i]) * float(b[i])) != double(a[i]) * double(b[i]);
  lesson.predict("of 100,000 random products FP32 holds every one exactly", inexact == 0);
}

void dot_products(Lesson& lesson) {
  lesson.section("Dot products: the relative error of the sum");
  Table table({"terms", "exact sum", "fp16 one by one", "fp16, pairs", "fp16, carry", "in fp32", "demi's matmul"});
  Chart chart{.title = "A dot product as it grows", .x_label = "terms", .y_label = "sum", .log2_y = true};
  chart.log2_x = true;
  chart.series = {{.name = "fp16, one by one"},
                  {.name = "fp16, in pairs", .colour = 1},
                  {.name = "exact", .colour = 2, .dashed = true}};
  bool stuck = true, mended = true, one_rounding = true;
  for (int64_t n = 64; n <= 65536; n *= 2) {
    const std::vector<Half> a = random_halves(n, lesson.seed()), b = random_halves(n, lesson.seed() + 1);
    std::vector<Half> terms;
    double exact = 0;
    float sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      terms.push_back(Half(float(a[i]) * float(b[i])));
      sum += float(a[i]) * float(b[i]);
      exact += double(a[i]) * double(b[i]);
    }
    const Tensor row = Tensor::from(a, {1, n}, lesson.device()), column = Tensor::from(b, {n, 1}, lesson.device());
    const double results[] = {one_by_one(terms), in_pairs(terms), with_carry(terms), Half(sum),
                              kernels::matmul(row, column).item<Half>()};
    double error[5];
    std::vector<std::string> cells{fmt::format("{}", n), fmt::format("{:.1f}", exact)};
    for (size_t i = 0; i < 5; ++i) {
      error[i] = std::abs(results[i] / exact - 1);
      cells.push_back(fmt::format("{:.3f} %", 100 * error[i]));
    }
    table.add(cells);
    for (size_t i = 0; i < 3; ++i) chart.series[i].x.push_back(static_cast<double>(n));
    for (size_t i = 0; i < 3; ++i) chart.series[i].y.push_back(i < 2 ? results[i] : exact);
    stuck = stuck && results[0] <= 2048 && (n < 32768 || error[0] > 0.5);
    mended = mended && error[1] < 0.01 && error[2] < 0.01;
    one_rounding = one_rounding && error[3] < 0x1p-10 && error[4] < 0x1p-10;
  }
  lesson.show(table);
  lesson.predict("one by one in FP16 no sum passes 2,048: of 32,768 terms most is lost", stuck);
  lesson.predict("in pairs and with the carry the error stays under 1 %", mended);
  lesson.predict("sums in FP32, demi's too, cost one rounding: under 2^-10, 0.1 %", one_rounding);
  lesson.save("sums", chart);
}

}  // namespace

void sums(Lesson& lesson) {
  ones(lesson);
  products(lesson);
  dot_products(lesson);
}

}  // namespace demi::lessons
