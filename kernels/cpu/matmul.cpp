// C [m, n] = op(A) [m, k] op(B) [k, n] + bias [n]: 2 m n k operations on the engine of gemm.h. B is packed once for all
// threads; each thread takes blocks of C's rows, or, when there are few rows, of its columns.
#include "demi/kernels/matmul.h"

#include <type_traits>

#include "demi/kernels/cpu/gemm.h"

namespace demi::kernels::cpu {
namespace {

constexpr int64_t kRowsAtOnce = 256;

// out [columns, rows] = the transpose of in [rows, columns], whose rows lie in_step apart. 16 rows at a time: whole
// cache lines of both sides.
template <typename T, typename Acc>
void transpose(const T* in, int64_t in_step, int64_t rows, int64_t columns, Acc* out) {
  for (int64_t first = 0; first < rows; first += 16) {
    const int64_t last = std::min(rows, first + 16);
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = first; i < last; ++i) out[j * rows + i] = static_cast<Acc>(in[i * in_step + j]);
  }
}

template <typename T, typename Out>
void multiply_matrices(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias,
                       Tensor& c) {
  using Acc = Accumulator<T>;
  const int64_t m = c.size(0), n = c.size(1), k = a.size(transpose_a ? 0 : 1);
  const T* const a_data = a.data<T>();
  const T* const b_data = b.data<T>();
  const Acc* const bias_data = bias.defined() ? bias.data<Acc>() : nullptr;
  Out* const c_data = c.mutable_data<Out>();

  const Workspace<Acc> packed_b(Packed<Acc>::size(k, n));
  const Packed<Acc> packed{packed_b.data(), k, n};
  parallel_for(packed.panels(), ceil_div(1 << 14, kPanel<Acc> * std::max<int64_t>(k, 1)),
               [&](int64_t begin, int64_t end) {
                 pack(b_data, transpose_b ? 1 : n, transpose_b ? k : 1, k, n, begin, end, 0, k, packed_b.data());
               });

  const Blocks blocks = cut_into_blocks({{0, k}});
  // Rows of A are read where they lie if their elements are adjacent and wide; else they are copied so first.
  const bool in_place = std::is_same_v<T, Acc> && !transpose_a;
  int64_t rows_at_once = std::min(kRowsAtOnce, ceil_div(m, num_threads()));
  if (!in_place) rows_at_once = std::min(rows_at_once, (int64_t{1} << 18) / std::max<int64_t>(k, 1));
  rows_at_once = std::max<int64_t>(ceil_div(rows_at_once, kTileRows) * kTileRows, kTileRows);
  const int64_t row_blocks = ceil_div(m, rows_at_once);
  const int64_t column_blocks = std::min(packed.panels(), std::max<int64_t>(1, num_threads() / row_blocks));
  const int64_t work = std::max<int64_t>(1, rows_at_once * k * n / column_blocks);
  parallel_for(row_blocks * column_blocks, ceil_div(1 << 16, work), [&](int64_t begin, int64_t end) {
    const Workspace<Acc> copy(in_place ? 0 : rows_at_once * k);
    RowPointers<Acc, Out> rows;
    std::vector<Acc> sums;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t i0 = block / column_blocks * rows_at_once, i1 = std::min(m, i0 + rows_at_once);
      const int64_t part = block % column_blocks;
      rows.clear();
      const Acc* source = copy.data();
      if constexpr (std::is_same_v<T, Acc>)
        if (in_place) source = a_data + i0 * k;
      if (transpose_a)
        transpose(a_data + i0, m, k, i1 - i0, copy.data());
      else if (!in_place)
        widen(a_data + i0 * k, copy.data(), (i1 - i0) * k);
      rows.add(source, k, c_data + i0 * n, n, i1 - i0);
      multiply(rows, blocks, packed, bias_data, packed.panels() * part / column_blocks,
               packed.panels() * (part + 1) / column_blocks, sums);
    }
  });
}

}  // namespace

void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias, Tensor& c) {
  visit_floating(a.dtype(), "matmul", [&](auto type) {
    using T = typename decltype(type)::type;
    if (c.dtype() == a.dtype())
      multiply_matrices<T, T>(a, transpose_a, b, transpose_b, bias, c);
    else
      multiply_matrices<T, Accumulator<T>>(a, transpose_a, b, transpose_b, bias, c);
  });
}

}  // namespace demi::kernels::cpu
