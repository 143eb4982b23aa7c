// Uniform and normal fills: four elements from each Philox block.
#include "demi/kernels/random.h"

#include <cmath>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

// draw(block, values): four values of one Philox block, in Accumulator<T>.
template <typename T, typename F>
void fill_blocks(Tensor& x, uint64_t seed, uint64_t stream, F draw) {
  using A = Accumulator<T>;
  const int64_t n = x.numel();
  T* out = x.mutable_data<T>();
  parallel_for((n + 3) / 4, kGrain / 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      A values[4];
      draw(Philox(seed, stream, static_cast<uint64_t>(block)), values);
      for (int64_t i = 4 * block; i < std::min(n, 4 * block + 4); ++i) out[i] = T(values[i - 4 * block]);
    }
  });
}

}  // namespace

void fill_uniform(Tensor& x, double low, double high, uint64_t seed, uint64_t stream) {
  visit_floating(x.dtype(), "fill_uniform", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A from = static_cast<A>(low), width = static_cast<A>(high - low);
    fill_blocks<T>(x, seed, stream, [=](const Philox& random, A* v) {
      for (int i = 0; i < 4; ++i) v[i] = std::fma(width, static_cast<A>(random.uniform(i)), from);
    });
  });
}

// Box and Muller (1958): with u1 in (0, 1] and u2 in [0, 1), r = sqrt(-2 ln u1) gives r cos 2 pi u2 and r sin 2 pi u2.
void fill_normal(Tensor& x, double mean, double std_dev, uint64_t seed, uint64_t stream) {
  visit_floating(x.dtype(), "fill_normal", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A centre = static_cast<A>(mean), width = static_cast<A>(std_dev);
    fill_blocks<T>(x, seed, stream, [=](const Philox& random, A* v) {
      for (int i = 0; i < 4; i += 2) {
        const A u1 = A(1) - static_cast<A>(random.uniform(i)), u2 = static_cast<A>(random.uniform(i + 1));
        const A r = std::sqrt(A(-2) * std::log(u1)), angle = A(6.283185307179586476925) * u2;
        v[i] = centre + width * r * std::cos(angle);
        v[i + 1] = centre + width * r * std::sin(angle);
      }
    });
  });
}

}  // namespace demi::kernels::cpu
