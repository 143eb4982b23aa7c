// Convolution and its gradients without copies of patches (im2col), 2 N P Q K R S C/groups operations each.
//
//   fprop  y[n, p, q, k]  = bias[k] + sum_{r,s,c} x[n, p*stride + r*dilation - padding, ..., c] w[k, r, s, c]
//   dgrad  dx[n, h, w, c] = sum_{r,s,k} dy[n, p, q, k] w[k, r, s, c]  where h = p*stride + r*dilation - padding, ...
//   wgrad  dw[k, r, s, c] = sum_{n,p,q} dy[n, p, q, k] x[n, p*stride + r*dilation - padding, ..., c]
//
// fprop and dgrad are the same thing, a `Gather`: each output pixel of a regular grid sums over taps, input pixels at a
// fixed distance from its own. For dgrad the pixels h, w with the same remainders by the stride form one grid: they all
// meet the same filter elements. So each grid is a matrix product [pixels, taps * channels] x [taps * channels,
// channels] whose left operand is read straight from the input, or from a copy of a few rows of it with the padding
// filled in and 16-bit elements widened.
#include "demi/kernels/conv2d.h"

#include <type_traits>

#include "demi/kernels/cpu/conv2d_window.h"
#include "demi/kernels/cpu/gemm.h"

namespace demi::kernels::cpu {
namespace {

constexpr int64_t kPixelsAtOnce = 256;             // rows of a product that share the blocks of the filter in L1
constexpr int64_t kBandBytes = int64_t{1} << 20;   // of copied input that a thread works on, about an L2 cache
constexpr int64_t kChunkBytes = int64_t{4} << 20;  // of packed operands of wgrad, shared by the threads
constexpr int64_t kPixelsInPass = 512;             // of wgrad: what a tile of dw sums up in registers

struct Tap {
  int64_t row, column;  // distance from input pixel (i * step, j * step)
  int64_t filter;       // r * S + s
};

// out(origin + i * spacing) = sum over the taps of in(i * step + tap), i in [0, rows), likewise for columns.
struct Gather {
  int64_t rows, columns;
  std::array<int64_t, 2> origin, spacing;
  std::vector<Tap> taps;  // ascending, so that neighbours in memory are neighbours here
};

// How the filter is read as a matrix [tap and input channel, output channel].
struct FilterLayout {
  int64_t group, tap, depth, column;  // elements from one to the next
};

template <typename T>
void gather_convolution(const T* in_data, const Images& in, const std::vector<Gather>& gathers,
                        std::array<int64_t, 2> step, const T* filter, const FilterLayout& layout, int64_t groups,
                        const Accumulator<T>* bias, T* out_data, const Images& out) {
  using Acc = Accumulator<T>;
  const int64_t depth = in.channels / groups, columns = out.channels / groups;

  // The window that a band needs: all taps of all grids.
  Tap low{0, 0, 0}, high{0, 0, 0};
  bool any = false;
  int64_t rows = 0, width = 0, total_taps = 0;
  for (const Gather& g : gathers) {
    rows = std::max(rows, g.rows), width = std::max(width, g.columns);
    total_taps += static_cast<int64_t>(g.taps.size());
    for (const Tap& t : g.taps) {
      low = any ? Tap{std::min(low.row, t.row), std::min(low.column, t.column), 0} : t;
      high = any ? Tap{std::max(high.row, t.row), std::max(high.column, t.column), 0} : t;
      any = true;
    }
  }
  const auto window_of = [&](int64_t row, int64_t count) {
    return Window{row * step[0] + low.row, low.column, (count - 1) * step[0] + high.row - low.row + 1,
                  (width - 1) * step[1] + high.column - low.column + 1};
  };
  const bool in_place = std::is_same_v<T, Acc> && window_of(0, rows).inside(in);
  const int64_t pitch = in_place ? in.width : window_of(0, 1).width;

  // The filter as packed matrices, [grid][group].
  const int64_t packed_columns = Packed<Acc>::size(1, columns);
  const Workspace<Acc> packed(total_taps * depth * groups * packed_columns);
  std::vector<Acc*> packed_of;
  std::vector<Blocks> blocks;
  Acc* next = packed.data();
  for (const Gather& g : gathers) {
    const int64_t taps = static_cast<int64_t>(g.taps.size());
    packed_of.push_back(next);
    next += taps * depth * groups * packed_columns;
    parallel_for(groups * taps, ceil_div(1 << 13, depth * columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = i / taps, tap = i % taps;
        pack(filter + group * layout.group + g.taps[static_cast<size_t>(tap)].filter * layout.tap, layout.depth,
             layout.column, depth, columns, 0, ceil_div(columns, kPanel<Acc>), tap * depth, taps * depth,
             packed_of.back() + group * taps * depth * packed_columns);
      }
    });
    std::vector<std::pair<int64_t, int64_t>> stretches;
    for (const Tap& t : g.taps) {
      const int64_t offset = ((t.row - low.row) * pitch + t.column - low.column) * in.channels;
      if (!stretches.empty() && stretches.back().first + stretches.back().second == offset)
        stretches.back().second += depth;
      else
        stretches.emplace_back(offset, depth);
    }
    blocks.push_back(cut_into_blocks(stretches));
  }

  const int64_t row_bytes = window_of(0, 1).width * step[0] * in.channels * static_cast<int64_t>(sizeof(Acc));
  const std::vector<Band> bands = cut_into_bands(in.count, rows, width, row_bytes, kPixelsAtOnce, kBandBytes);
  const int64_t panels = ceil_div(columns, kPanel<Acc>), band_count = static_cast<int64_t>(bands.size());
  const int64_t parts = std::min(panels, std::max<int64_t>(1, num_threads() / band_count));
  int64_t copy_size = 0;
  if (!in_place)
    for (const Band& b : bands) {
      const Window w = window_of(b.row, b.rows);
      copy_size = std::max(copy_size, b.images * w.height * w.width * in.channels);
    }

  parallel_for(band_count * parts, 1, [&](int64_t begin, int64_t end) {
    const Workspace<Acc> copy(copy_size);
    RowPointers<Acc, T> pointers;
    std::vector<Acc> sums;
    for (int64_t item = begin; item < end; ++item) {
      const Band& band = bands[static_cast<size_t>(item / parts)];
      const int64_t part = item % parts;
      const Window window = window_of(band.row, band.rows);
      const int64_t row_size = pitch * in.channels;
      const int64_t image_size = (in_place ? in.height : window.height) * row_size;
      const Acc* source = copy.data();
      if constexpr (std::is_same_v<T, Acc>)
        if (in_place) source = in_data + band.image * image_size + window.row * row_size + window.column * in.channels;
      if (!in_place)
        for (int64_t n = 0; n < band.images; ++n)
          for (int64_t row = 0; row < window.height; ++row)
            copy_window_row(in_data + (band.image + n) * in.height * in.width * in.channels, in, window, row,
                            copy.data() + n * image_size + row * row_size);

      for (size_t grid = 0; grid < gathers.size(); ++grid) {
        const Gather& g = gathers[grid];
        const int64_t grid_rows = std::min(band.rows, g.rows - band.row);
        for (int64_t group = 0; group < groups; ++group) {
          pointers.clear();
          for (int64_t n = 0; n < band.images; ++n)
            for (int64_t i = 0; i < grid_rows; ++i) {
              const Acc* from = source + n * image_size + i * step[0] * row_size + group * depth;
              const int64_t row = g.origin[0] + (band.row + i) * g.spacing[0];
              T* to = out_data + (((band.image + n) * out.height + row) * out.width + g.origin[1]) * out.channels +
                      group * columns;
              pointers.add(from, step[1] * in.channels, to, g.spacing[1] * out.channels, g.columns);
            }
          const int64_t total = depth_of(blocks[grid]);
          const Packed<Acc> matrix{packed_of[grid] + group * total * packed_columns, total, columns};
          multiply(pointers, blocks[grid], matrix, bias == nullptr ? nullptr : bias + group * columns,
                   panels * part / parts, panels * (part + 1) / parts, sums);
        }
      }
    }
  });
}

// out [pixels, width] = `count` channels of each of the pixels at in, zeros in the others.
template <typename Acc>
void split_panel(const Acc* in, int64_t in_step, int64_t pixels, int64_t count, Acc* out, int64_t width) {
  const auto copy = [&](int64_t n) {
    for (int64_t i = 0; i < pixels; ++i) {
      std::memcpy(out + i * width, in + i * in_step, static_cast<size_t>(n) * sizeof(Acc));
      for (int64_t c = n; c < width; ++c) out[i * width + c] = Acc{};
    }
  };
  if (count == kPanel<Acc>)  // lengths that the compiler knows
    copy(kPanel<Acc>);
  else if (count == kTileRows)
    copy(kTileRows);
  else
    copy(count);
}

// dw as products of [filters, pixels] x [pixels, channels], one for each tap: the sum runs over the pixels in order. A
// chunk of the batch is widened and packed, dy into panels of kTileRows filters and x into panels of at most kPanel
// channels with the padding filled in; then the threads share out the taps and panels of dw.
template <typename T>
class FilterGradient {
  using Acc = Accumulator<T>;

 public:
  FilterGradient(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, const Tensor& dw)
      : dy_(dy.data<T>()),
        x_(x.data<T>()),
        in_(x.shape()),
        out_(dy.shape()),
        f_(dw.shape(), options.groups),
        options_(options),
        width_(std::min(f_.in, kPanel<Acc>)),
        in_panels_(ceil_div(f_.in, kPanel<Acc>)),
        out_panels_(ceil_div(f_.out, kTileRows)),
        pitch_(window_of(0, 1).width) {
    const bool merge = in_panels_ == 1 && options.dilation[1] == 1;
    const int64_t channels = merge ? f_.s * f_.in : f_.in;
    for (int64_t r = 0; r < f_.r; ++r)
      for (int64_t s = 0; s < (merge ? 1 : f_.s); ++s)
        for (int64_t c = 0; c < channels; c += kPanel<Acc>) {
          const int64_t panel = merge ? 0 : c / kPanel<Acc>, lane = merge ? c : 0;
          const int64_t pixel = r * options.dilation[0] * pitch_ + s * options.dilation[1];
          tiles_.push_back(
              {panel, pixel * width_ + lane, (r * f_.s + s) * f_.in + c, std::min(kPanel<Acc>, channels - c)});
        }
  }

  void compute(Acc* dw) {
    const int64_t x_row = pitch_ * in_panels_ * width_ * f_.groups;
    const int64_t dy_row = out_.width * out_panels_ * kTileRows * f_.groups;
    const int64_t row_bytes = (x_row * options_.stride[0] + dy_row) * static_cast<int64_t>(sizeof(Acc));
    const int64_t pixels = out_.count * out_.height * out_.width;
    const std::vector<Band> chunks =
        cut_into_bands(out_.count, out_.height, out_.width, row_bytes, pixels, kChunkBytes);
    int64_t x_rows = 0, dy_rows = 0;
    for (const Band& b : chunks) {
      x_rows = std::max(x_rows, b.images * window_of(b.row, b.rows).height);
      dy_rows = std::max(dy_rows, b.images * b.rows);
    }
    // Tiles load whole vectors: behind the last pixel there must be something to load.
    const Workspace<Acc> packed_x(x_rows * x_row + kPanel<Acc>), packed_dy(dy_rows * dy_row);
    std::fill_n(packed_x.data() + x_rows * x_row, kPanel<Acc>, Acc{});
    for (const Band& chunk : chunks) {
      pack(chunk, packed_x.data(), packed_dy.data());
      multiply(chunk, packed_x.data(), packed_dy.data(), &chunk != &chunks.front(), dw);
    }
  }

 private:
  // The columns of dw [K, R S C/groups] that a tile takes: some channels of a tap or, if there are few channels, of the
  // taps of one filter row, which are neighbours in x as well.
  struct Columns {
    int64_t panel, x_offset, dw_offset, count;
  };

  Window window_of(int64_t row, int64_t rows) const {
    const auto [stride_h, stride_w] = options_.stride;
    const int64_t width = (out_.width - 1) * stride_w + (f_.s - 1) * options_.dilation[1] + 1;
    return Window{row * stride_h - options_.padding[0], -options_.padding[1],
                  (rows - 1) * stride_h + (f_.r - 1) * options_.dilation[0] + 1,
                  ceil_div(width, stride_w) * stride_w};  // so that a row is a whole number of steps
  }

  // packed_x [group][panel][row][pixel][width_], packed_dy [group][panel][row][pixel][kTileRows].
  void pack(const Band& band, Acc* packed_x, Acc* packed_dy) const {
    const Window window = window_of(band.row, band.rows);
    const int64_t x_rows = band.images * window.height, dy_rows = band.images * band.rows;
    parallel_for(x_rows + dy_rows, 8, [&](int64_t begin, int64_t end) {
      std::vector<Acc> wide(static_cast<size_t>(std::max(pitch_ * in_.channels, out_.width * out_.channels)));
      for (int64_t i = begin; i < std::min(end, x_rows); ++i) {
        const T* const image = x_ + (band.image + i / window.height) * in_.height * in_.width * in_.channels;
        const int64_t row_size = pitch_ * width_;
        if (width_ == in_.channels) {  // one panel: packed as it is
          copy_window_row(image, in_, window, i % window.height, packed_x + i * row_size);
          continue;
        }
        copy_window_row(image, in_, window, i % window.height, wide.data());
        for (int64_t g = 0; g < f_.groups; ++g)
          for (int64_t p = 0; p < in_panels_; ++p)
            split_panel(wide.data() + g * f_.in + p * width_, in_.channels, pitch_,
                        std::min(width_, f_.in - p * width_), packed_x + ((g * in_panels_ + p) * x_rows + i) * row_size,
                        width_);
      }
      for (int64_t i = std::max(begin, x_rows) - x_rows; i < end - x_rows; ++i) {
        const int64_t image = band.image + i / band.rows, row_size = out_.width * kTileRows;
        const T* const row = dy_ + (image * out_.height + band.row + i % band.rows) * out_.width * out_.channels;
        const Acc* source = wide.data();
        if constexpr (std::is_same_v<T, Acc>)
          source = row;
        else
          widen(row, wide.data(), out_.width * out_.channels);
        for (int64_t g = 0; g < f_.groups; ++g)
          for (int64_t p = 0; p < out_panels_; ++p)
            split_panel(source + g * f_.out + p * kTileRows, out_.channels, out_.width,
                        std::min<int64_t>(kTileRows, f_.out - p * kTileRows),
                        packed_dy + ((g * out_panels_ + p) * dy_rows + i) * row_size, kTileRows);
      }
    });
  }

  // dw = (add ? dw : 0) + the products of a packed band.
  void multiply(const Band& band, const Acc* packed_x, const Acc* packed_dy, bool add, Acc* dw) const {
    const Window window = window_of(band.row, band.rows);
    const int64_t x_panel = band.images * window.height * pitch_ * width_;
    const int64_t dy_panel = band.images * band.rows * out_.width * kTileRows;
    std::vector<Run> runs;  // one for each row of output pixels
    for (int64_t n = 0; n < band.images; ++n)
      for (int64_t p = 0; p < band.rows; ++p)
        runs.push_back({(n * band.rows + p) * out_.width,
                        (n * window.height + p * options_.stride[0]) * pitch_ / options_.stride[1], out_.width});
    const int64_t run_count = static_cast<int64_t>(runs.size()), tile_count = static_cast<int64_t>(tiles_.size());
    const int64_t runs_at_once = std::max<int64_t>(1, kPixelsInPass / out_.width);
    const int64_t parts = std::clamp<int64_t>(4 * num_threads() / (tile_count * f_.groups), 1, out_panels_);

    parallel_for(f_.groups * tile_count * parts, 1, [&](int64_t begin, int64_t end) {
      Acc sum[kTileRows * kPanel<Acc>];
      for (int64_t item = begin; item < end; ++item) {
        const int64_t part = item % parts, g = item / parts / tile_count;
        const Columns& tile = tiles_[static_cast<size_t>(item / parts % tile_count)];
        const Acc* const b = packed_x + (g * in_panels_ + tile.panel) * x_panel + tile.x_offset;
        const auto multiply =
            tile.count > kLanes<Acc> ? multiply_tile<2, kTileRows, Acc> : multiply_tile<1, kTileRows, Acc>;
        for (int64_t first = 0; first < run_count; first += runs_at_once)
          for (int64_t p = out_panels_ * part / parts; p < out_panels_ * (part + 1) / parts; ++p) {
            const Acc* rows[kTileRows];
            for (int i = 0; i < kTileRows; ++i) rows[i] = packed_dy + (g * out_panels_ + p) * dy_panel + i;
            multiply(rows, &runs[static_cast<size_t>(first)], std::min(runs_at_once, run_count - first), b,
                     options_.stride[1] * width_, sum, kPanel<Acc>, false);
            for (int64_t i = 0; i < std::min<int64_t>(kTileRows, f_.out - p * kTileRows); ++i) {
              Acc* const to = dw + (g * f_.out + p * kTileRows + i) * f_.r * f_.s * f_.in + tile.dw_offset;
              for (int64_t j = 0; j < tile.count; ++j)
                to[j] = (add || first > 0 ? to[j] : Acc{}) + sum[i * kPanel<Acc> + j];
            }
          }
      }
    });
  }

  const T* dy_;
  const T* x_;
  Images in_, out_;
  Filters f_;
  Conv2dOptions options_;
  int64_t width_, in_panels_, out_panels_;  // of x: channels in a panel; panels of one group
  int64_t pitch_;                           // pixels in a row of packed x
  std::vector<Columns> tiles_;
};

}  // namespace

void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, Tensor& y) {
  visit_floating(x.dtype(), "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const Images in(x.shape()), out(y.shape());
    const Filters f(w.shape(), options.groups);
    Gather g{out.height, out.width, {0, 0}, {1, 1}, {}};
    for (int64_t r = 0; r < f.r; ++r)
      for (int64_t s = 0; s < f.s; ++s)
        g.taps.push_back(
            {r * options.dilation[0] - options.padding[0], s * options.dilation[1] - options.padding[1], r * f.s + s});
    const int64_t filter_size = f.r * f.s * f.in;
    gather_convolution(x.data<T>(), in, {g}, options.stride, w.data<T>(),
                       FilterLayout{f.out * filter_size, f.in, 1, filter_size}, f.groups,
                       bias.defined() ? bias.data<Accumulator<T>>() : nullptr, y.mutable_data<T>(), out);
  });
}

void conv2d_dgrad(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor& dx) {
  visit_floating(dy.dtype(), "conv2d_dgrad", [&](auto type) {
    using T = typename decltype(type)::type;
    const Images in(dy.shape()), out(dx.shape());
    const Filters f(w.shape(), options.groups);
    const auto [stride_h, stride_w] = options.stride;
    std::vector<Gather> grids;  // one for each pair of remainders of (h, w) by the stride
    for (int64_t h = 0; h < std::min(stride_h, out.height); ++h)
      for (int64_t v = 0; v < std::min(stride_w, out.width); ++v) {
        Gather g{ceil_div(out.height - h, stride_h), ceil_div(out.width - v, stride_w), {h, v}, options.stride, {}};
        for (int64_t r = f.r - 1; r >= 0; --r)
          for (int64_t s = f.s - 1; s >= 0; --s) {
            const int64_t row = h + options.padding[0] - r * options.dilation[0];
            const int64_t column = v + options.padding[1] - s * options.dilation[1];
            if (row % stride_h == 0 && column % stride_w == 0)
              g.taps.push_back({row / stride_h, column / stride_w, r * f.s + s});
          }
        grids.push_back(g);
      }
    const int64_t filter_size = f.r * f.s * f.in;
    gather_convolution(dy.data<T>(), in, grids, {1, 1}, w.data<T>(),
                       FilterLayout{f.out * filter_size, f.in, filter_size, 1}, f.groups,
                       static_cast<const Accumulator<T>*>(nullptr), dx.mutable_data<T>(), out);
  });
}

void conv2d_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw) {
  visit_floating(dy.dtype(), "conv2d_wgrad", [&](auto type) {
    using T = typename decltype(type)::type;
    FilterGradient<T> gradient(dy, x, options, dw);
    if constexpr (std::is_same_v<T, Accumulator<T>>) {
      gradient.compute(dw.mutable_data<T>());
    } else {
      const Workspace<float> sums(dw.numel());
      gradient.compute(sums.data());
      narrow(sums.data(), dw.mutable_data<T>(), dw.numel());
    }
  });
}

}  // namespace demi::kernels::cpu
