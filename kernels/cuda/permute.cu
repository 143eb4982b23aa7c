// permute: y = x with its axes in another order. Every element is read and written once. Where the permutation comes
// down to transposing matrices (NCHW <-> NHWC: a [C, HW] matrix an image), tiles go through shared memory, so that both
// sides are read and written in whole runs; every other one gathers through strides.
#include "demi/kernels/permute.h"

#include "demi/kernels/cuda/strided.cuh"

namespace demi::kernels::cuda {
namespace {

constexpr int kTileRows = 8;  // rows of a tile that one pass of a block's 32 x 8 threads takes

// x: [batch, rows, columns] -> y: [batch, columns, rows]. A block takes square tiles of kTile elements, larger ones for
// small elements, so that a run is at least 64 bytes long.
template <int kTile, typename T>
__global__ void __launch_bounds__(32 * kTileRows)
    transpose_kernel(const T* x, int64_t tiles, int64_t rows, int64_t columns, T* y) {
  constexpr int kPad = sizeof(T) >= 4 ? 1 : static_cast<int>(4 / sizeof(T));  // columns of a tile in different banks
  __shared__ T tile[kTile][kTile + kPad];
  const int64_t across = (columns + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
  const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t image = t / (across * down), within = t % (across * down);
    const int64_t row = within / across * kTile, column = within % across * kTile;
    const T* from = x + image * rows * columns;
    T* to = y + image * rows * columns;
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int i = 0; i < kTile; i += kTileRows)
#pragma unroll
      for (int j = 0; j < kTile; j += 32)
        if (row + line + i < rows && column + lane + j < columns)
          tile[line + i][lane + j] = from[(row + line + i) * columns + column + lane + j];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; i += kTileRows)
#pragma unroll
      for (int j = 0; j < kTile; j += 32)
        if (column + line + i < columns && row + lane + j < rows)
          to[(column + line + i) * rows + row + lane + j] = tile[lane + j][line + i];
  }
}

template <int kTile, typename T>
void transpose(const Tensor& x, int64_t batch, int64_t rows, int64_t columns, Tensor& y) {
  const int64_t tiles = batch * ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  const int blocks = blocks_for(tiles, x, 1);
  transpose_kernel<kTile><<<blocks, 32 * kTileRows, 0, stream_of(x)>>>(static_cast<const T*>(x.raw()), tiles, rows,
                                                                       columns, static_cast<T*>(y.mutable_raw()));
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void permute(const Tensor& x, const std::vector<int>& axes, Tensor& y) {
  DEMI_CHECK(x.dtype() != DType::F64, "[permute] fp64 exists on the CPU only");
  std::array<int64_t, Shape::kMaxRank> of_x{}, strides{};
  int64_t step = 1;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    of_x[static_cast<size_t>(axis)] = step;
    step *= x.size(axis);
  }
  for (size_t i = 0; i < axes.size(); ++i) strides[i] = of_x[static_cast<size_t>(x.shape().axis(axes[i]))];

  // Once adjacent axes are merged, matrices to transpose are seen from y as: innermost, the rows of x at a stride of
  // one row; then its columns at stride 1; then perhaps a batch of matrices.
  const StridedIndex<1> index(y.shape(), {strides});
  const int64_t rows = index.extent[0], columns = index.extent[1];
  const bool matrices = (index.rank == 2 || (index.rank == 3 && index.stride[0][2] == rows * columns)) &&
                        index.stride[0][0] == columns && index.stride[0][1] == 1;
  if (!matrices || rows < 16 || columns < 16) return strided_copy(x, strides, y);
  const int64_t batch = x.numel() / (rows * columns);
  switch (size_of(x.dtype())) {
    case 1:
      return transpose<64, uint8_t>(x, batch, rows, columns, y);
    case 2:
      return transpose<64, uint16_t>(x, batch, rows, columns, y);
    case 4:
      return transpose<32, uint32_t>(x, batch, rows, columns, y);
    default:
      return transpose<32, uint64_t>(x, batch, rows, columns, y);
  }
}

}  // namespace demi::kernels::cuda
