// Pooling (max: 3x3, stride 2, padding 1, as behind the stem of ResNet-50; average: 2x2, stride 2; global average),
// softmax cross-entropy (mean over the samples), and augmentation of records (crop after padding by 4, flip).
#include "demi/bench/cases.h"
#include "demi/core/random.h"
#include "demi/kernels/augment.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/pool.h"
#include "demi/kernels/reduce.h"
#include "demi/kernels/scale.h"

namespace demi::bench {
namespace {

using namespace kernels;
using Fill = Input::Fill;

const Pool2dOptions kMax{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
const Pool2dOptions kAverage{.kernel = {2, 2}, .stride = {2, 2}};

struct Pooling {
  Extents e;
  Shape y;
};
Pooling pooling(const Request& request, const Pool2dOptions& options) {
  Pooling p{parse_extents(request, Kind::Images), {}};
  try {
    p.y = pool2d_shape(request.op.c_str(), p.e.shape, options);
  } catch (const Error& e) {
    fail("shape '{}' is impossible for {}: {}; such as {}", request.shape, request.op, e.what(),
         example_of(Kind::Images));
  }
  return p;
}

Spec max_forward(const Request& request) {
  const auto [e, y] = pooling(request, kMax);
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = request.dtype(), .odd = e.odd}};
  s.run = [](Tensors& in) {
    const MaxPoolResult r = max_pool2d(in[0], kMax);
    return Tensors{r.y, r.index};
  };
  s.by_rows = true;
  s.limit = 1e-12;  // nothing is rounded
  s.bytes = bytes_of(e.shape, request.dtype()) + bytes_of(y, request.dtype()) + bytes_of(y, DType::I32);
  s.flops = 9 * static_cast<double>(y.numel());
  return s;
}

Spec max_backward(const Request& request) {
  const auto [e, y] = pooling(request, kMax);
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = request.dtype()},
              {.shape = y, .dtype = request.dtype(), .odd = e.odd},
              {.shape = y, .dtype = DType::I32, .fill = Fill::Derived}};
  s.derive = [](Tensors& in) {
    in[2] = max_pool2d(in[0], kMax).index;
    in[0] = Tensor();  // only its shape is wanted
  };
  const Shape shape = e.shape;
  s.run = [shape](Tensors& in) {
    Shape x = shape;
    x.set(0, in[1].size(0));
    return Tensors{max_pool2d_backward(in[1], in[2], x, kMax)};
  };
  s.by_rows = true;
  s.bytes = bytes_of(e.shape, request.dtype()) + bytes_of(y, request.dtype()) + bytes_of(y, DType::I32);
  s.flops = static_cast<double>(y.numel());
  return s;
}

Spec average(const Request& request, bool global, bool backward) {
  const Extents images = parse_extents(request, Kind::Images);
  const Shape x = images.shape, y = global ? Shape{x[0], x[3]} : pooling(request, kAverage).y;
  Spec s;
  s.inputs = {{.shape = backward ? y : x, .dtype = request.dtype(), .odd = images.odd}};
  s.run = [=](Tensors& in) {
    Shape part = x;
    part.set(0, in[0].size(0));
    if (!backward) return Tensors{global ? reduce(ReduceOp::Mean, in[0], {1, 2}) : avg_pool2d(in[0], kAverage)};
    if (!global) return Tensors{avg_pool2d_backward(in[0], part, kAverage)};
    // As nn/functional/pool.cpp does it: the mean's gradient, spread over the pixels.
    const Tensor share = scale(in[0], 1.0 / static_cast<double>(x[1] * x[2]));
    return Tensors{broadcast_to(share.reshape(Shape{part[0], 1, 1, x[3]}), part)};
  };
  s.by_rows = true;
  s.bytes = bytes_of(x, request.dtype()) + bytes_of(y, request.dtype());
  s.flops = static_cast<double>(x.numel());
  return s;
}

Spec loss(const Request& request, bool backward) {
  const Extents e = parse_extents(request, Kind::Logits);
  const Shape samples{e.shape[0]};
  const auto classes = static_cast<double>(e.shape[1]);
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = request.dtype(), .b = 3, .odd = e.odd},
              {.shape = samples, .dtype = DType::I64, .fill = Fill::Whole, .b = classes}};
  if (backward) {
    s.inputs.push_back({.shape = samples, .dtype = DType::F32, .fill = Fill::Derived});
    // dy, under a loss scale
    s.inputs.push_back({.shape = {}, .dtype = DType::F32, .fill = Fill::Constant, .a = 1024, .batched = false});
    s.derive = [](Tensors& in) { in[2] = cross_entropy(in[0], in[1], 0, Reduction::Mean).log_sum; };
  }
  s.run = [=](Tensors& in) {
    if (backward) return Tensors{cross_entropy_backward(in[3], in[0], in[1], in[2], 0, Reduction::Mean)};
    const CrossEntropyResult r = cross_entropy(in[0], in[1], 0, Reduction::Mean);
    return Tensors{r.loss, r.log_sum};
  };
  s.bytes = (backward ? 2 : 1) * bytes_of(e.shape, request.dtype()) + 12 * static_cast<double>(samples.numel());
  s.flops = (backward ? 4 : 3) * static_cast<double>(e.shape.numel());  // subtract, exponential, sum; the product
  return s;
}

// The records' bytes once more in FP64, by the rule in kernels/augment.h.
Tensor augmented(const Tensors& in, const AugmentOptions& o) {
  const Tensor &records = in[0], &index = in[1];
  const int64_t n = index.numel(), height = records.size(2), width = records.size(3);
  Tensor y = Tensor::empty({n, height, width, 3}, DType::F64);
  double* to = y.mutable_data<double>();
  const auto range = static_cast<uint32_t>(2 * o.pad + 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t record = index.data<int64_t>()[i];
    const Philox random(o.seed, o.epoch, static_cast<uint64_t>(record));
    const int64_t down = int64_t{random.word[0] % range} - o.pad, right = int64_t{random.word[1] % range} - o.pad;
    const bool flip = random.word[2] >> 31;
    for (int64_t h = 0; h < height; ++h)
      for (int64_t w = 0; w < width; ++w)
        for (int64_t c = 0; c < 3; ++c) {
          const int64_t row = h + down, column = (flip ? width - 1 - w : w) + right;
          const bool inside = row >= 0 && row < height && column >= 0 && column < width;
          const double u = inside ? records.data<uint8_t>()[((record * 3 + c) * height + row) * width + column] : 0;
          const auto k = static_cast<size_t>(c);
          *to++ = (u / 255 - static_cast<double>(o.mean[k])) / static_cast<double>(o.std_dev[k]);
        }
  }
  return y;
}

Spec augmentation(const Request& request) {
  const Extents e = parse_extents(request, Kind::Records);
  const Shape y = e.shape;
  const DType dtype = request.dtype();
  const int64_t records = 4 * y[0];  // drawn from: few come twice
  const AugmentOptions options{
      .pad = 4, .flip = true, .mean = {0.4914f, 0.4822f, 0.4465f}, .std_dev = {0.2470f, 0.2435f, 0.2616f}, .seed = 7};
  Spec s;
  s.inputs = {{.shape = {records, 3, y[1], y[2]},
               .dtype = DType::U8,
               .fill = Fill::Whole,
               .b = 256,
               .batched = false,
               .odd = e.odd},
              {.shape = {y[0]}, .dtype = DType::I64, .fill = Fill::Whole, .b = static_cast<double>(records)}};
  s.run = [=](Tensors& in) { return Tensors{augment(in[0], in[1], options, dtype)}; };
  s.reference = [=](Tensors& in) { return Tensors{augmented(in, options)}; };
  s.host_reference = true;
  s.by_rows = true;
  s.bytes = bytes_of(y, DType::U8) + bytes_of(y, dtype) + bytes_of(Shape{y[0]}, DType::I64);
  s.flops = 2 * static_cast<double>(y.numel());
  return s;
}

}  // namespace

void add_pool_loss(std::vector<Op>& ops) {
  ops.push_back({"max_pool", Kind::Images, kStored, max_forward});
  ops.push_back({"max_pool_backward", Kind::Images, kStored, max_backward});
  for (const bool global : {false, true})
    for (const bool backward : {false, true})
      ops.push_back({fmt::format("{}avg_pool{}", global ? "global_" : "", backward ? "_backward" : ""), Kind::Images,
                     kStored, [=](const Request& r) { return average(r, global, backward); }});
  ops.push_back({"cross_entropy", Kind::Logits, kStored, [](const Request& r) { return loss(r, false); }});
  ops.push_back({"cross_entropy_backward", Kind::Logits, kStored, [](const Request& r) { return loss(r, true); }});
  ops.push_back({"augment", Kind::Records, kStored, augmentation});
}

}  // namespace demi::bench
