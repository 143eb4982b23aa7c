// The engine under cpu::gemm and the convolutions: C [m, n] = A [m, depth] B [depth, n] + bias [n], in FP32 or FP64.
//
// It takes 2 m n depth operations, and reaches the arithmetic's peak only if operands come from the nearest caches: B
// is packed once into panels of two vectors' width; a block of a panel (kBlockDepth rows, the larger part of an L1
// cache) meets all rows of A at hand; and a tile of C, kTileRows x 2 vectors, stays in registers while the sum runs. A
// is not packed: each of its rows is a pointer, and the sum walks over `Run`s, stretches that lie at the same offsets
// in every row. A matrix is one run; a convolution's pixel is one run a filter row, so it needs no copy of its patches
// (im2col). An element's sum has one order, whatever the number of threads.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "demi/core/parallel.h"
#include "demi/core/tensor.h"
#include "demi/kernels/cpu/convert.h"

namespace demi::kernels::cpu {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 8;  // 16 sums, 2 vectors of B: of 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 4;  // 8 sums, 2 vectors of B, 1 of A: of 16 registers
#else
constexpr int kVectorBytes = 16, kTileRows = 4;
#endif
constexpr int64_t kBlockDepth = 256;

template <typename Acc>
struct VectorOf {
  typedef Acc type __attribute__((vector_size(kVectorBytes)));
};
template <typename Acc>
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(Acc));
template <typename Acc>
constexpr int64_t kPanel = 2 * kLanes<Acc>;  // columns of C that one tile covers

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Uninitialized scratch memory, counted as workspace.
template <typename Acc>
class Workspace {
 public:
  explicit Workspace(int64_t count) {
    const memory::Scope scope(memory::Category::Workspace);
    tensor_ = Tensor::empty(Shape{count}, dtype_of<Acc>);
    data_ = tensor_.mutable_data<Acc>();
  }
  Acc* data() const { return data_; }

 private:
  Tensor tensor_;
  Acc* data_;
};

// Beside those of convert.h: what is as wide as its sums is copied.
template <typename Acc>
inline void widen(const Acc* in, Acc* out, int64_t n) {
  std::memcpy(out, in, static_cast<size_t>(n) * sizeof(Acc));
}
template <typename Acc>
inline void narrow(const Acc* in, Acc* out, int64_t n) {
  std::memcpy(out, in, static_cast<size_t>(n) * sizeof(Acc));
}

// `length` steps of the sum: from step `a` on in each row of A, from row `b` on in B.
struct Run {
  int64_t a, b, length;
};

// c [kTileRows, kVectors vectors] = (add ? c : 0) + the sum over all steps of rows[.][step * kStep] * b[step * b_step].
template <int kVectors, int kStep, typename Acc>
void multiply_tile(const Acc* const* rows, const Run* runs, int64_t run_count, const Acc* b, int64_t b_step, Acc* c,
                   int64_t c_step, bool add) {
  using Vector = typename VectorOf<Acc>::type;
  constexpr int64_t lanes = kLanes<Acc>;
  const Acc* row[kTileRows];
  Vector sum[kTileRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    row[i] = rows[i];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = Vector{};
      if (add) std::memcpy(&sum[i][v], c + i * c_step + v * lanes, sizeof(Vector));
    }
  }
  for (int64_t r = 0; r < run_count; ++r) {
    const Acc* at = b + runs[r].b * b_step;
    const int64_t begin = runs[r].a * kStep, end = begin + runs[r].length * kStep;
    for (int64_t a = begin; a != end; a += kStep, at += b_step) {
      Vector vector[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) std::memcpy(&vector[v], at + v * lanes, sizeof(Vector));
#pragma GCC unroll 16
      for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[i][v] += row[i][a] * vector[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) std::memcpy(c + i * c_step + v * lanes, &sum[i][v], sizeof(Vector));
}

// B packed for multiply(): panel after panel, each [depth, kPanel]; a last one of up to one vector is [depth, kLanes].
template <typename Acc>
struct Packed {
  const Acc* data;
  int64_t depth, columns;

  static int64_t size(int64_t depth, int64_t columns) { return depth * ceil_div(columns, kLanes<Acc>) * kLanes<Acc>; }
  int64_t panels() const { return ceil_div(columns, kPanel<Acc>); }
};

// Packs `depth` rows of B, element (d, j) at source[d * depth_step + j * column_step], as rows [first, first + depth)
// of the panels [panel_begin, panel_end) of `out`, a packed matrix of total_depth rows.
template <typename T, typename Acc>
void pack(const T* source, int64_t depth_step, int64_t column_step, int64_t depth, int64_t columns, int64_t panel_begin,
          int64_t panel_end, int64_t first, int64_t total_depth, Acc* out) {
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t column = panel * kPanel<Acc>, count = std::min(columns - column, kPanel<Acc>);
    const int64_t width = count > kLanes<Acc> ? kPanel<Acc> : kLanes<Acc>;
    Acc* to = out + column * total_depth + first * width;
    const T* from = source + column * column_step;
    if (column_step == 1) {
      for (int64_t d = 0; d < depth; ++d) {
        widen(from + d * depth_step, to + d * width, count);
        std::fill(to + d * width + count, to + (d + 1) * width, Acc{});
      }
      continue;
    }
    for (int64_t d0 = 0; d0 < depth; d0 += 16) {  // 16 rows at a time: whole cache lines of both sides
      const int64_t d1 = std::min(depth, d0 + 16);
      for (int64_t j = 0; j < width; ++j)
        for (int64_t d = d0; d < d1; ++d)
          to[d * width + j] = j < count ? static_cast<Acc>(from[d * depth_step + j * column_step]) : Acc{};
    }
  }
}

// A part of the sum, and of B's rows, that fits a block of a panel.
struct Block {
  std::vector<Run> runs;
  int64_t depth = 0;
};
using Blocks = std::vector<Block>;

inline int64_t depth_of(const Blocks& blocks) {
  int64_t depth = 0;
  for (const Block& block : blocks) depth += block.depth;
  return depth;
}

// Cuts a sum over stretches of A's rows, (offset, length) in the order of B's rows, into blocks of about equal depth.
inline Blocks cut_into_blocks(const std::vector<std::pair<int64_t, int64_t>>& stretches) {
  int64_t depth = 0;
  for (const auto& stretch : stretches) depth += stretch.second;
  const int64_t count = std::max<int64_t>(1, ceil_div(depth, kBlockDepth)), size = ceil_div(depth, count);
  Blocks blocks(1);
  for (auto [offset, length] : stretches)
    while (length > 0) {
      if (blocks.back().depth == size) blocks.emplace_back();
      Block& block = blocks.back();
      const int64_t steps = std::min(length, size - block.depth);
      block.runs.push_back({offset, block.depth, steps});
      block.depth += steps, offset += steps, length -= steps;
    }
  return blocks;
}

// Where the rows of A begin, and those of C.
template <typename Acc, typename Out>
struct RowPointers {
  std::vector<const Acc*> a;
  std::vector<Out*> c;
  void clear() { a.clear(), c.clear(); }
  // `count` more rows, a_step and c_step elements apart.
  void add(const Acc* from, int64_t a_step, Out* to, int64_t c_step, int64_t count) {
    const size_t old = c.size();
    a.resize(old + static_cast<size_t>(count)), c.resize(old + static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      a[old + static_cast<size_t>(i)] = from + i * a_step;
      c[old + static_cast<size_t>(i)] = to + i * c_step;
    }
  }
};

// c = sum + bias, rounded. Full panels have their own loop, of a length that the compiler knows.
template <typename Acc, typename Out>
inline void finish_row(Acc* sum, const Acc* bias, int64_t count, Out* c) {
  const auto finish = [&](int64_t n) {
    if (bias != nullptr)
      for (int64_t j = 0; j < n; ++j) sum[j] += bias[j];
    narrow(sum, c, n);
  };
  if (count == kPanel<Acc>)
    finish(kPanel<Acc>);
  else if (count == kLanes<Acc>)
    finish(kLanes<Acc>);
  else
    finish(count);
}

// The panels [panel_begin, panel_end) of C = A B + bias for the given rows; bias may be null. `sums` is scratch.
template <typename Acc, typename Out>
void multiply(RowPointers<Acc, Out>& rows, const Blocks& blocks, const Packed<Acc>& b, const Acc* bias,
              int64_t panel_begin, int64_t panel_end, std::vector<Acc>& sums) {
  const int64_t m = static_cast<int64_t>(rows.c.size());
  if (m == 0) return;
  while (rows.a.size() % kTileRows != 0) rows.a.push_back(rows.a.back());  // computed, never stored
  sums.resize(rows.a.size() * static_cast<size_t>(kPanel<Acc>));
  const Acc** const a = rows.a.data();
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t column = panel * kPanel<Acc>, count = std::min(b.columns - column, kPanel<Acc>);
    const int64_t width = count > kLanes<Acc> ? kPanel<Acc> : kLanes<Acc>;
    const auto tile = width == kPanel<Acc> ? multiply_tile<2, 1, Acc> : multiply_tile<1, 1, Acc>;
    const Acc* data = b.data + column * b.depth;
    for (const Block& block : blocks) {
      const int64_t run_count = static_cast<int64_t>(block.runs.size());
      for (int64_t i = 0; i < m; i += kTileRows)
        tile(a + i, block.runs.data(), run_count, data, width, &sums[static_cast<size_t>(i * width)], width,
             &block != &blocks.front());
      data += block.depth * width;
    }
    for (int64_t i = 0; i < m; ++i)
      finish_row(&sums[static_cast<size_t>(i * width)], bias == nullptr ? nullptr : bias + column, count,
                 rows.c[static_cast<size_t>(i)] + column);
  }
}

}  // namespace demi::kernels::cpu
