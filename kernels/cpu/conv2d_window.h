// How the convolutions see a batch of images: in bands that fit a cache, each read through a window that reaches into
// the padding.
#pragma once

#include <algorithm>
#include <vector>

#include "demi/kernels/cpu/gemm.h"

namespace demi::kernels::cpu {

struct Images {  // [count, height, width, channels]
  int64_t count, height, width, channels;
  explicit Images(const Shape& s) : count(s[0]), height(s[1]), width(s[2]), channels(s[3]) {}
};

struct Filters {  // [out, r, s, in]: in and out of one group
  int64_t out, r, s, in, groups;
  Filters(const Shape& w, int64_t groups_) : out(w[0] / groups_), r(w[1]), s(w[2]), in(w[3]), groups(groups_) {}
};

// A rectangle of input pixels, which may stick out of the image (where it is zero): rows [row, row + height) ...
struct Window {
  int64_t row, column, height, width;
  bool inside(const Images& in) const {
    return row >= 0 && column >= 0 && row + height <= in.height && column + width <= in.width;
  }
};

// Row `row` of a window [height, width, channels] of one image, widened.
template <typename T, typename Acc>
void copy_window_row(const T* image, const Images& in, const Window& window, int64_t row, Acc* out) {
  const int64_t c = in.channels, h = window.row + row;
  const int64_t begin = std::clamp<int64_t>(-window.column, 0, window.width);
  const int64_t end = std::clamp(in.width - window.column, begin, window.width);
  if (h < 0 || h >= in.height || begin == end) {
    std::fill(out, out + window.width * c, Acc{});
    return;
  }
  std::fill(out, out + begin * c, Acc{});
  widen(image + (h * in.width + window.column + begin) * c, out + begin * c, (end - begin) * c);
  std::fill(out + end * c, out + window.width * c, Acc{});
}

// A part of a batch small enough for a cache: whole images, or some rows of a single one.
struct Band {
  int64_t image, images, row, rows;
};

// Cuts `images` of `rows` rows into bands: about `pixels` of `width` pixels a row, and at most about `bytes`.
inline std::vector<Band> cut_into_bands(int64_t images, int64_t rows, int64_t width, int64_t row_bytes, int64_t pixels,
                                        int64_t bytes) {
  const int64_t most = std::max<int64_t>(1, std::min(ceil_div(pixels, width), bytes / row_bytes));
  std::vector<Band> bands;
  if (most >= rows) {
    const int64_t parts = ceil_div(images, most / rows);
    for (int64_t i = 0; i < parts; ++i)
      bands.push_back({images * i / parts, images * (i + 1) / parts - images * i / parts, 0, rows});
  } else {
    const int64_t parts = ceil_div(rows, most);
    for (int64_t n = 0; n < images; ++n)
      for (int64_t i = 0; i < parts; ++i)
        bands.push_back({n, 1, rows * i / parts, rows * (i + 1) / parts - rows * i / parts});
  }
  return bands;
}

}  // namespace demi::kernels::cpu
