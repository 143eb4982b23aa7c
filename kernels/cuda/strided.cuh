// Broadcasting and permuting through strides: K operands read at strides of their own while the output is written in
// order. The host merges adjacent axes first, so that most calls come down to one or two of them.
#pragma once

#include <array>

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {

// Division by a number known at the launch: a multiplication and a shift where all numbers stay under 2^31 (Granlund
// and Montgomery, 1994), else the real thing.
struct Divider {
  uint64_t divisor = 1;
  uint32_t magic = 1;
  int shift = 0;
  bool narrow = false;

  Divider() = default;
  // largest: no number divided will be above it.
  Divider(int64_t by, int64_t largest) : divisor(static_cast<uint64_t>(by)) {
    narrow = largest < (int64_t{1} << 31) && by < (int64_t{1} << 31);
    if (!narrow) return;
    while ((uint64_t{1} << shift) < divisor) ++shift;
    magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  __device__ __forceinline__ int64_t operator()(int64_t n) const {
    if (narrow) {
      const auto small = static_cast<uint32_t>(n);
      return (__umulhi(small, magic) + small) >> shift;
    }
    return static_cast<int64_t>(static_cast<uint64_t>(n) / divisor);
  }
};

// Where the operands are for each output element; axis 0 is the innermost.
template <int K>
struct StridedIndex {
  int rank = 0;
  int64_t extent[Shape::kMaxRank] = {};
  int64_t stride[K][Shape::kMaxRank] = {};
  Divider divide[Shape::kMaxRank];

  // strides[k][axis] in elements, axis 0 the outermost, as in `shape`. 0 repeats along an axis.
  StridedIndex(const Shape& shape, const std::array<std::array<int64_t, Shape::kMaxRank>, K>& strides) {
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (shape[axis] == 1) continue;
      bool continues = rank > 0;  // the axis inside, in every operand
      for (int k = 0; k < K && continues; ++k) continues = strides[k][axis] == stride[k][rank - 1] * extent[rank - 1];
      if (continues) {
        extent[rank - 1] *= shape[axis];
        continue;
      }
      extent[rank] = shape[axis];
      for (int k = 0; k < K; ++k) stride[k][rank] = strides[k][axis];
      ++rank;
    }
    if (rank == 0) {
      extent[0] = rank = 1;
      for (int k = 0; k < K; ++k) stride[k][0] = 1;
    }
    set_dividers(shape.numel());
  }

  // Whether packs of N elements work: innermost strides 0 or 1, no pack across the end of an innermost run, and every
  // run that is read in packs starts at a multiple of N. The memory's own alignment is the caller's.
  bool packs(int N) const {
    for (int k = 0; k < K; ++k) {
      if (stride[k][0] != 0 && stride[k][0] != 1) return false;
      for (int axis = 1; axis < rank && stride[k][0] == 1; ++axis)
        if (stride[k][axis] % N != 0) return false;
    }
    return rank == 1 || extent[0] % N == 0;
  }

  // The same in units of packs along the innermost axis; elements left over (rank 1 only) are the caller's.
  StridedIndex in_packs(int N) const {
    StridedIndex packed = *this;
    if (N == 1) return packed;
    packed.extent[0] /= N;
    for (int k = 0; k < K; ++k) packed.stride[k][0] *= N;
    int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= packed.extent[axis];
    packed.set_dividers(count);
    return packed;
  }

  // Offsets of item i, in elements.
  __device__ __forceinline__ void locate(int64_t i, int64_t (&offset)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] = 0;
    for (int axis = 0; axis < rank - 1; ++axis) {
      const int64_t outside = divide[axis](i), at = i - outside * extent[axis];
#pragma unroll
      for (int k = 0; k < K; ++k) offset[k] += at * stride[k][axis];
      i = outside;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] += i * stride[k][rank - 1];
  }

 private:
  void set_dividers(int64_t count) {
    for (int axis = 0; axis < rank; ++axis) divide[axis] = Divider(std::max<int64_t>(1, extent[axis]), count);
  }
};

// The strides of a contiguous tensor of shape `from` read as one of shape `to` by NumPy's rule.
inline std::array<int64_t, Shape::kMaxRank> broadcast_strides(const Shape& from, const Shape& to) {
  std::array<int64_t, Shape::kMaxRank> strides{};
  int64_t step = 1;
  for (int axis = 1; axis <= from.rank(); ++axis) {
    if (from[-axis] != 1) strides[static_cast<size_t>(to.rank() - axis)] = step;
    step *= from[-axis];
  }
  return strides;
}

// y, written in order, takes x at the given strides (in elements): any dtype, x and y alike.
void strided_copy(const Tensor& x, const std::array<int64_t, Shape::kMaxRank>& strides, Tensor& y);

}  // namespace demi::kernels::cuda
