// Loops over elements for the CPU kernels. Operands of any floating dtype are read as FP32 (FP64 for FP64), a block at
// a time, so that the arithmetic is plain vectorizable float code and each result is rounded once.
#pragma once

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <vector>

#include "demi/core/parallel.h"
#include "demi/kernels/cpu/convert.h"

namespace demi::kernels::cpu {

constexpr int64_t kBlock = 512;        // elements converted at a time: blocks of eight operands fit the L1 cache
constexpr int64_t kGrain = 16 * 1024;  // elements that are worth a thread
constexpr int64_t kPart = 64 * 1024;   // elements summed into one partial sum, whatever the number of threads

// A block of T as Accumulator<T>: in place where that is the same type.
template <typename T>
class Reader {
 public:
  using A = Accumulator<T>;
  const A* operator()(const T* x, [[maybe_unused]] int64_t n) {
    if constexpr (std::is_same_v<T, A>) {
      return x;
    } else {
      widen(x, buffer_, n);
      return buffer_;
    }
  }

 private:
  alignas(64) A buffer_[std::is_same_v<T, A> ? 1 : kBlock];
};

// A block to compute in, and its way to memory.
template <typename T>
class Writer {
 public:
  using A = Accumulator<T>;
  A* at([[maybe_unused]] T* y) {
    if constexpr (std::is_same_v<T, A>)
      return y;
    else
      return buffer_;
  }
  void commit([[maybe_unused]] T* y, [[maybe_unused]] int64_t n) {
    if constexpr (!std::is_same_v<T, A>) narrow(buffer_, y, n);
  }

 private:
  alignas(64) A buffer_[std::is_same_v<T, A> ? 1 : kBlock];
};

// y[i] = f(x[i]...) on one block. y may be one of the x: element i depends on elements i alone.
template <typename F, typename A, typename... B>
void map_block(int64_t n, F f, A* y, const B*... x) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]...);
}

// y[i] = f(x[i]...) for all i.
template <typename F, typename Y, typename... X>
void map(int64_t n, F f, Y* y, const X*... x) {
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    std::tuple<Reader<X>...> readers;
    Writer<Y> writer;
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t m = std::min(kBlock, end - at);
      std::apply([&](auto&... read) { map_block(m, f, writer.at(y + at), read(x + at, m)...); }, readers);
      writer.commit(y + at, m);
    }
  });
}

// The sum of one block in 16 interleaved running sums: vectorizable, and the order depends on n alone.
template <typename A>
double block_sum(const A* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  double sum = 0;
  int64_t i = 0;
  if (n < kLanes) {
    for (; i < n; ++i) sum += static_cast<double>(x[i]);
    return sum;
  }
  A lane[kLanes] = {};
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lane[l] += x[i + l];
  for (int64_t l = 0; i < n; ++i, ++l) lane[l] += x[i];
  for (A s : lane) sum += static_cast<double>(s);
  return sum;
}

// sum of f(x[i]...): blocks in FP32 (FP64 for FP64), blocks of blocks in FP64, in an order that depends on n alone.
template <typename F, typename... X>
double map_sum(int64_t n, F f, const X*... x) {
  using A = std::common_type_t<Accumulator<X>...>;
  const auto part = [&](int64_t begin, int64_t end) {
    std::tuple<Reader<X>...> readers;
    alignas(64) A values[kBlock];
    double sum = 0;
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t m = std::min(kBlock, end - at);
      std::apply([&](auto&... read) { map_block(m, f, values, read(x + at, m)...); }, readers);
      sum += block_sum(values, m);
    }
    return sum;
  };
  if (n <= kPart) return part(0, n);
  const int64_t parts = (n + kPart - 1) / kPart;
  std::vector<double> partial(static_cast<size_t>(parts));
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      partial[static_cast<size_t>(p)] = part(p * kPart, std::min(n, (p + 1) * kPart));
  });
  double sum = 0;
  for (double s : partial) sum += s;
  return sum;
}

}  // namespace demi::kernels::cpu
