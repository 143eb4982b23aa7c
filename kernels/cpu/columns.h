// Loops over [rows, channels], channels last, for per-channel sums and per-channel arithmetic.
//
// With few channels several rows are taken as one long row, so that the inner loop is always long: element i of a block
// belongs to channel i % channels, and per-channel operands are repeated to match (repeat_channels).
#pragma once

#include <array>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

// Length of a per-channel operand repeated for blocks.
inline int64_t repeated_length(int64_t channels) {
  return channels <= kBlock ? kBlock / channels * channels : channels;
}

// v(c) for each channel, repeated.
template <typename A, typename F>
std::vector<A> repeat_channels(int64_t channels, F v) {
  std::vector<A> r(static_cast<size_t>(repeated_length(channels)));
  for (int64_t i = 0; i < static_cast<int64_t>(r.size()); ++i)
    r[static_cast<size_t>(i)] = static_cast<A>(i < channels ? v(i) : r[static_cast<size_t>(i - channels)]);
  return r;
}

// body(offset, n, c): elements [offset, offset + n), n <= kBlock, whose channels are those of repeated operands from c.
template <typename F>
void for_channel_blocks(int64_t first_row, int64_t last_row, int64_t channels, F body) {
  if (channels <= kBlock) {
    const int64_t length = repeated_length(channels), end = last_row * channels;
    for (int64_t at = first_row * channels; at < end; at += length) body(at, std::min(length, end - at), int64_t{0});
    return;
  }
  for (int64_t row = first_row; row < last_row; ++row)
    for (int64_t c = 0; c < channels; c += kBlock) body(row * channels + c, std::min(kBlock, channels - c), c);
}

// K sums a channel, [K][channels]. body(offset, n, sums) adds element offset + i to sums[k][i]. Short runs are added in
// A, those in FP64; the order depends on the shape alone, not on the number of threads.
template <int K, typename A, typename F>
std::vector<double> column_sums(int64_t rows, int64_t channels, F body) {
  constexpr int kRun = 64;  // additions to a running sum before it goes to the FP64 one
  const int64_t length = repeated_length(channels), width = K * channels;
  const int64_t parts = std::clamp<int64_t>(rows * channels / kPart, 1, 64);
  std::vector<double> totals(static_cast<size_t>(parts * width), 0.0);
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<A> running(static_cast<size_t>(K * length));
    for (int64_t p = begin; p < end; ++p) {
      double* total = totals.data() + p * width;
      const auto flush = [&] {
        for (int64_t k = 0; k < K; ++k)
          for (int64_t i = 0; i < length; i += channels)
            for (int64_t c = 0; c < channels; ++c) total[k * channels + c] += running[k * length + i + c];
        std::fill(running.begin(), running.end(), A(0));
      };
      std::fill(running.begin(), running.end(), A(0));
      int64_t added = 0;
      for_channel_blocks(rows * p / parts, rows * (p + 1) / parts, channels, [&](int64_t offset, int64_t n, int64_t c) {
        std::array<A*, K> sums;
        for (int64_t k = 0; k < K; ++k) sums[static_cast<size_t>(k)] = running.data() + k * length + c;
        body(offset, n, c, sums);
        if (c + n >= length || channels <= kBlock)
          if (++added % kRun == 0) flush();
      });
      flush();
    }
  });
  for (int64_t p = 1; p < parts; ++p)
    for (int64_t i = 0; i < width; ++i) totals[static_cast<size_t>(i)] += totals[static_cast<size_t>(p * width + i)];
  totals.resize(static_cast<size_t>(width));
  return totals;
}

// Rows that are worth a thread.
inline int64_t row_grain(int64_t channels) { return std::max<int64_t>(1, kGrain / channels); }

}  // namespace demi::kernels::cpu
