// A copy with the axes in another order: rows of the result are gathered from strided elements.
#include "demi/kernels/permute.h"

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

template <typename T>
void gather(const T* x, const std::vector<int64_t>& strides, const Shape& shape, T* y) {
  const int64_t length = shape[-1], stride = strides.back();
  const int64_t rows = shape.numel() / length;
  parallel_for(rows, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row, offset = 0;
      for (int i = shape.rank() - 2; i >= 0; --i) {
        offset += rest % shape[i] * strides[static_cast<size_t>(i)];
        rest /= shape[i];
      }
      for (int64_t i = 0; i < length; ++i) y[row * length + i] = x[offset + i * stride];
    }
  });
}

}  // namespace

void permute(const Tensor& x, const std::vector<int>& axes, Tensor& y) {
  if (y.rank() == 0) return y.copy_from(x);
  std::vector<int64_t> strides;
  for (int a : axes) strides.push_back(axis_view(x.shape(), a).inner);
  switch (size_of(x.dtype())) {
    case 1:
      return gather(static_cast<const uint8_t*>(x.raw()), strides, y.shape(), static_cast<uint8_t*>(y.mutable_raw()));
    case 2:
      return gather(static_cast<const uint16_t*>(x.raw()), strides, y.shape(), static_cast<uint16_t*>(y.mutable_raw()));
    case 4:
      return gather(static_cast<const uint32_t*>(x.raw()), strides, y.shape(), static_cast<uint32_t*>(y.mutable_raw()));
    default:
      return gather(static_cast<const uint64_t*>(x.raw()), strides, y.shape(), static_cast<uint64_t*>(y.mutable_raw()));
  }
}

}  // namespace demi::kernels::cpu
