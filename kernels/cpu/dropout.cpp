// Dropout with counter-based numbers: four elements share one Philox block.
#include "demi/kernels/dropout.h"

#include "demi/core/random.h"
#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

void dropout(const Tensor& x, double p, uint64_t seed, const Tensor& step, uint64_t call, Tensor& y, Tensor& mask) {
  visit_floating(x.dtype(), "dropout", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t n = x.numel();
    const uint64_t stream = mix(static_cast<uint64_t>(*step.data<int64_t>()), call);
    const float threshold = static_cast<float>(p);
    const A gain = p < 1 ? static_cast<A>(1 / (1 - p)) : A(0);
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    uint8_t* kept = mask.mutable_data<uint8_t>();
    parallel_for((n + 3) / 4, kGrain / 8, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const Philox random(seed, stream, static_cast<uint64_t>(block));
        for (int64_t i = 4 * block; i < std::min(n, 4 * block + 4); ++i) {
          kept[i] = random.uniform(static_cast<int>(i % 4)) >= threshold;
          out[i] = T(kept[i] ? static_cast<A>(in[i]) * gain : A(0));
        }
      }
    });
  });
}

void dropout_backward(const Tensor& dy, const Tensor& mask, double p, Tensor& dx) {
  visit_floating(dy.dtype(), "dropout_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A gain = p < 1 ? static_cast<A>(1 / (1 - p)) : A(0);
    const T* in = dy.data<T>();
    const uint8_t* kept = mask.data<uint8_t>();
    T* out = dx.mutable_data<T>();
    parallel_for(dy.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = T(kept[i] ? static_cast<A>(in[i]) * gain : A(0));
    });
  });
}

}  // namespace demi::kernels::cpu
