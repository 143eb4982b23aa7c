// Eigen's packet arithmetic for the functions that the compiler cannot vectorize itself (exp, log). FP32 and narrower
// is taken to FP64 and back: Eigen's FP32 exp is off by up to 4.5 units in the last place, ends at e^88.37 and knows no
// subnormals, while its FP64 one, rounded once, is off by half a unit for every FP32 value. FP64 itself stays with
// <cmath>: Eigen's FP64 exp does not reach 0. Packets of two FP64 are slower than <cmath> too.
#pragma once

#include <Eigen/Core>
#include <array>
#include <cmath>
#include <tuple>
#include <type_traits>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

#if defined(__AVX2__)
template <typename T>
constexpr bool kPackets = std::is_same_v<Accumulator<T>, float>;
#else
template <typename T>
constexpr bool kPackets = false;
#endif

// Up to kBlock numbers on the stack.
using Block = Eigen::Array<double, Eigen::Dynamic, 1, Eigen::ColMajor, kBlock, 1>;

// v[i] = the element x[i * stride]; and back, rounded once.
template <typename T>
void load(const T* x, int64_t stride, int64_t n, double* v) {
  using A = Accumulator<T>;
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i) v[i] = static_cast<double>(static_cast<A>(x[i * stride]));
    return;
  }
  Reader<T> read;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    map_block(
        m, [](A a) { return static_cast<double>(a); }, v + at, read(x + at, m));
  }
}
template <typename T>
void store(const double* v, int64_t n, T* y, int64_t stride) {
  using A = Accumulator<T>;
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i) y[i * stride] = T(static_cast<A>(v[i]));
    return;
  }
  Writer<T> writer;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    map_block(
        m, [](double a) { return static_cast<A>(a); }, writer.at(y + at), v + at);
    writer.commit(y + at, m);
  }
}

// y[i] = f(x[i]...), a block at a time: f(Block&...) leaves y in its first argument.
template <typename F, typename T, typename... X>
void map_blocks(int64_t n, F f, T* y, const X*... x) {
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    std::array<Block, sizeof...(X)> blocks;
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t m = std::min(kBlock, end - at);
      for (Block& block : blocks) block.resize(m);
      std::apply([&](auto&... block) { (load(x + at, 1, m, block.data()), ...), f(block...); }, blocks);
      store(blocks[0].data(), m, y + at, 1);
    }
  });
}

// v = e^v, where v goes back to T.
template <typename T, typename V>
void exponentiate(V&& v) {
  if constexpr (kPackets<T>)
    v = v.exp();
  else
    v = v.unaryExpr([](double a) { return static_cast<double>(std::exp(static_cast<Accumulator<T>>(a))); });
}

}  // namespace demi::kernels::cpu
