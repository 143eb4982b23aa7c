#include "demi/bench/harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "demi/core/parallel.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/random.h"

namespace demi::bench {
namespace {

constexpr uint64_t kSeed = 5;
constexpr double kHostFlops = 2e9, kHostElements = 4194304;  // what FP64 on the CPU is asked for at most

Tensor drawn(const Input& input, Device device, uint64_t stream) {
  Tensor x = allocate(input, device);
  switch (input.fill) {
    case Input::Fill::Normal:
      kernels::fill_normal(x, input.a, input.b, kSeed, stream);
      break;
    case Input::Fill::Uniform:
      kernels::fill_uniform(x, input.a, input.b, kSeed, stream);
      break;
    case Input::Fill::Whole: {
      Tensor reals = Tensor::empty(input.shape, DType::F32, device);
      kernels::fill_uniform(reals, 0, input.b, kSeed, stream);
      kernels::cast_into(reals, x);
      break;
    }
    case Input::Fill::Constant:
      kernels::fill(x, input.a);
      break;
    case Input::Fill::Derived:
      break;
  }
  return x;
}

double default_limit(Precision precision) {
  switch (precision) {
    case Precision::Fp32:
      return 1e-5;
    case Precision::Tf32:
      return 2e-3;
    case Precision::Fp16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

// Statistics, sums and masters that 16-bit ops keep in FP32 are computed in FP32: half's limit would hide errors there.
double limit_of(const Spec& spec, const Request& request, const Tensor& result) {
  if (spec.limit > 0) return spec.limit;
  const bool wider = is_16bit(request.dtype()) && result.dtype() == DType::F32;
  return default_limit(wider ? Precision::Fp32 : request.precision);
}

// A copy in the wider dtype, for integers in their own, on the device that computes the reference.
Tensor widened(const Tensor& t, DType wide, Device device) {
  if (!t.defined()) return t;
  const Tensor there = t.to(device);
  const Tensor copy = is_floating(t.dtype()) ? kernels::cast(there, wide) : there;
  return copy.same_storage(t) ? copy.clone() : copy;
}

// The last `rows` of what has the batch as its first axis.
Tensor last_rows(const Tensor& t, int64_t batch, int64_t rows) {
  if (!t.defined() || t.rank() == 0 || t.size(0) != batch || rows >= batch) return t;
  return t.narrow(batch - rows, rows);
}

double work_on_host(const Spec& spec) {
  double elements = 0;
  for (const Input& input : spec.inputs) elements = std::max(elements, static_cast<double>(input.shape.numel()));
  return std::max(spec.flops / kHostFlops, elements / kHostElements);
}

int64_t batch_of(const Spec& spec) {
  for (const Input& input : spec.inputs)
    if (input.batched && input.shape.rank() > 0) return input.shape[0];
  return 1;
}

size_t footprint_of(const Tensors& in, const Tensors& out) {
  size_t bytes = 0;
  std::set<const void*> seen;
  for (const Tensors* list : {&in, &out})
    for (const Tensor& t : *list)
      if (t.defined() && seen.insert(t.raw()).second) bytes += t.bytes();
  return bytes;
}

}  // namespace

std::string_view name_of(Precision precision) {
  constexpr std::string_view names[] = {"fp32", "tf32", "fp16", "bf16"};
  return names[static_cast<size_t>(precision)];
}

Precision precision_from_name(std::string_view name) {
  for (const Precision p : kPrecisions)
    if (name_of(p) == name) return p;
  fail("unknown dtype '{}': fp32, tf32, fp16 or bf16", name);
}

DType stored_dtype(Precision precision) {
  return precision == Precision::Fp16 ? DType::F16 : precision == Precision::Bf16 ? DType::BF16 : DType::F32;
}

Float32Math math_of(Precision precision) {
  return precision == Precision::Tf32 ? Float32Math::Tf32 : Float32Math::Ieee;
}

std::string Case::name() const {
  return fmt::format("{}/{}/{}/{}", request.op, name_of(request.precision), request.shape, cold ? "cold" : "warm");
}

Tensor allocate(const Input& input, Device device) {
  if (!input.odd) return Tensor::empty(input.shape, input.dtype, device);
  const int64_t n = input.shape.numel();
  return Tensor::empty({n + 1}, input.dtype, device).narrow(1, n).reshape(input.shape);
}

Tensors draw(const Spec& spec, Device device, uint64_t set) {
  Tensors in;
  for (const Input& input : spec.inputs) in.push_back(drawn(input, device, mix(set, in.size())));
  if (spec.derive) spec.derive(in);
  return in;
}

std::function<Tensors(Tensors&)> bound(const Spec& spec, const Tensors& in) {
  return spec.bind ? spec.bind(in) : spec.run;
}

Difference difference(const Tensor& y, const Tensor& reference) {
  DEMI_CHECK(y.shape() == reference.shape(), "a result of shape {}, the reference has {}", y.shape(),
             reference.shape());
  const Tensor a = y.to(Device::cpu()), b = reference.to(Device::cpu());
  constexpr int64_t kPiece = 1 << 16;
  const int64_t n = a.numel(), pieces = (n + kPiece - 1) / kPiece;
  std::vector<double> gaps(static_cast<size_t>(pieces)), norms(gaps.size()), worsts(gaps.size());
  Difference d;
  visit_any(a.dtype(), "difference", [&](auto s) {
    visit_any(b.dtype(), "difference", [&](auto t) {
      const auto* p = a.data<typename decltype(s)::type>();
      const auto* q = b.data<typename decltype(t)::type>();
      // body(piece, u, v) for each pair of elements
      const auto each = [&](const auto& body) {
        parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
          for (int64_t piece = begin; piece < end; ++piece)
            for (int64_t i = piece * kPiece; i < std::min(n, (piece + 1) * kPiece); ++i)
              body(static_cast<size_t>(piece), static_cast<double>(p[i]), static_cast<double>(q[i]));
        });
      };
      each([&](size_t piece, double u, double v) {
        if (u != v) gaps[piece] += (u - v) * (u - v);
        norms[piece] += v * v;
      });
      const double gap = std::accumulate(gaps.begin(), gaps.end(), 0.0);
      const double norm = std::accumulate(norms.begin(), norms.end(), 0.0);
      if (!std::isfinite(gap) || !std::isfinite(norm)) {
        d.norm = d.worst = std::numeric_limits<double>::infinity();
        return;
      }
      if (gap == 0) return;
      const double rms = std::sqrt(norm / static_cast<double>(n));
      each([&](size_t piece, double u, double v) {
        if (u != v) worsts[piece] = std::max(worsts[piece], std::fabs(u - v) / (std::fabs(v) + rms));
      });
      d.norm = std::sqrt(gap / norm);  // infinite where the reference is 0 and the result is not
      d.worst = *std::max_element(worsts.begin(), worsts.end());
    });
  });
  return d;
}

namespace {
// Where and in which dtype the reference is computed, and for how many rows of the batch.
struct Plan {
  Device device;
  DType wide;
  int64_t batch, rows;
};

Plan plan_of(const Spec& spec, const Request& request) {
  const double work = work_on_host(spec);
  Plan p;
  const bool on_host =
      spec.host_reference || work <= 1 || request.device.is_cpu() || request.precision == Precision::Fp32;
  p.device = on_host ? Device::cpu() : request.device;
  p.wide = on_host ? DType::F64 : DType::F32;
  p.batch = p.rows = batch_of(spec);
  if (on_host && work > 1)
    p.rows = std::clamp(static_cast<int64_t>(static_cast<double>(p.batch) / work), int64_t{1}, p.batch);
  return p;
}

Difference larger(const Difference& a, const Difference& b) {
  return {std::max(a.norm, b.norm), std::max(a.worst, b.worst)};
}

Verdict verify_once(const Spec& spec, const Request& request, bool plant) {
  const Plan p = plan_of(spec, request);
  const auto operands = [&] {
    Tensors in = draw(spec, request.device, 0);
    if (plant) spec.plant(in);
    return in;
  };
  Tensors in = operands(), same;
  const auto cut = [&](size_t i) { return spec.inputs[i].batched ? last_rows(in[i], p.batch, p.rows) : in[i]; };
  for (size_t i = 0; i < in.size(); ++i) same.push_back(widened(cut(i), p.wide, p.device));

  Verdict verdict;
  Tensors out, expected;
  {
    const Float32MathGuard math(math_of(request.precision));
    out = bound(spec, in)(in);
    verdict.footprint = footprint_of(in, out);
    if (p.rows < p.batch && !spec.by_rows) {  // what depends on the whole batch is computed for a smaller one
      Tensors fewer;
      in = operands();  // as they were before an op that changes them
      for (size_t i = 0; i < in.size(); ++i) fewer.push_back(in[i].defined() ? cut(i).clone() : Tensor());
      out = bound(spec, fewer)(fewer);
    } else {
      for (Tensor& t : out) t = last_rows(t, p.batch, p.rows);
    }
  }
  {
    const Float32MathGuard math(Float32Math::Ieee);
    expected = spec.reference ? spec.reference(same) : bound(spec, same)(same);
  }
  DEMI_CHECK(out.size() == expected.size(), "[{}] {} results, the reference has {}", request.op, out.size(),
             expected.size());
  DEMI_CHECK(!out.empty(), "[{}] no result to compare", request.op);
  for (size_t i = 0; i < out.size(); ++i) {
    DEMI_CHECK(out[i].defined() == expected[i].defined(), "[{}] result {} is missing on one side", request.op, i);
    if (!out[i].defined()) continue;
    const Difference error = difference(out[i], expected[i]);
    const double limit = limit_of(spec, request, out[i]);
    if (verdict.passed() && !(error.norm <= limit && error.worst <= kWorstFactor * limit))
      verdict.failure = fmt::format(
          "result {}: relative error {:.3g}, the limit is {:.3g}; of the worst element {:.3g}, the limit is {:.3g}", i,
          error.norm, limit, error.worst, kWorstFactor * limit);
    verdict.error = larger(verdict.error, error);
  }
  return verdict;
}
}  // namespace

Verdict verify(const Spec& spec, const Request& request) {
  Verdict verdict = verify_once(spec, request, false);
  if (!spec.plant) return verdict;
  const Verdict planted = verify_once(spec, request, true);
  verdict.error = larger(verdict.error, planted.error);
  if (verdict.passed()) verdict.failure = planted.failure;
  return verdict;
}

}  // namespace demi::bench
