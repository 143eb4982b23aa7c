// How batch norm's kernels walk x [rows, C] and fold what they saw of a channel. A block takes a tile of up to 64
// channels (128 bytes of FP16) and walks down the rows; a thread holds the V channels of one 16-byte access (V = 1
// where C or a pointer does not allow that), so what belongs to a channel stays in registers.
#pragma once

#include "demi/kernels/cuda/last_block.cuh"

namespace demi::kernels::cuda::batch_norm {

// Reductions take few, large blocks, since one block reads all others' partial sums; other passes take smaller ones.
constexpr int kReduceThreads = 512, kReduceBlocks = 1;  // a block, blocks on a multiprocessor
constexpr int kStreamThreads = 256, kStreamBlocks = 3;
constexpr int kTileChannels = 64, kScalarLanes = 32;  // a tile is lanes * V channels: at most 64, at most 32 for V = 1
constexpr int kTileCounters = 512;
constexpr int64_t kRowsPerThread = 1024;  // the most that one FP32 sum runs over

static __device__ unsigned tiles_done[kSlots][kTileCounters];

// Who does what: block b takes tile b % tiles and, of every `step` rows, the row_lanes rows that chunk b / tiles says.
struct Tiling {
  int64_t rows, channels;
  int lanes, row_lanes;  // lanes * row_lanes is the block, both powers of two
  int64_t tiles, chunks;
  int64_t step, full, rest;  // step = row_lanes * chunks; rows = full * step + rest

  __device__ int row_lane() const { return static_cast<int>(threadIdx.x) / lanes; }
  __device__ int64_t chunk() const { return blockIdx.x / static_cast<unsigned>(tiles); }
  __device__ int64_t tile() const { return blockIdx.x % static_cast<unsigned>(tiles); }
  __device__ int64_t first_row(int64_t of_chunk, int lane) const { return of_chunk * row_lanes + lane; }
  __device__ int64_t first_row() const { return first_row(chunk(), row_lane()); }
  __device__ int64_t count(int64_t of_chunk, int lane) const {  // rows that a lane of a chunk sees
    return full + (first_row(of_chunk, lane) < rest ? 1 : 0);
  }
  __device__ int64_t count(int64_t of_chunk) const {  // rows that a chunk sees
    const int64_t more = rest - of_chunk * row_lanes;
    return full * row_lanes + (more < 0 ? 0 : more < row_lanes ? more : row_lanes);
  }
};

// The V channels of a thread in one row: a single access.
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, V>*>(p);
}
template <typename T, int V>
__device__ __forceinline__ void store_pack(T* p, const float (&v)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int j = 0; j < V; ++j) pack.value[j] = static_cast<T>(v[j]);
  if constexpr (sizeof(pack) == 16) {
    uint4 bits;  // an intrinsic, since the compiler splits some plain stores into four
    memcpy(&bits, &pack, sizeof bits);
    __stcg(reinterpret_cast<uint4*>(p), bits);
  } else {
    *reinterpret_cast<Pack<T, V>*>(p) = pack;
  }
}

// Visits the rows of a thread, `kAhead` at a time: all are loaded before the first is used, or too few bytes are under
// way to fill the memory's pipe. load(u, row) and use(u, row) get u in [0, kAhead).
template <int kAhead, typename Load, typename Use>
__device__ __forceinline__ void walk_rows(const Tiling& t, const Load& load, const Use& use) {
  for (int64_t row = t.first_row(); row < t.rows; row += kAhead * t.step) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (row + u * t.step < t.rows) load(u, row + u * t.step);
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (row + u * t.step < t.rows) use(u, row + u * t.step);
  }
}

inline Tiling tiling_of(const Tensor& x, int pack, int threads, int blocks_per_sm) {
  Tiling t;
  t.channels = x.size(-1);
  t.rows = x.numel() / t.channels;
  const int64_t groups = t.channels / pack;
  const int widest = pack == 1 ? kScalarLanes : kTileChannels / pack;
  t.lanes = 1;
  while (t.lanes < widest && t.lanes < groups) t.lanes *= 2;
  t.row_lanes = threads / t.lanes;
  t.tiles = (groups + t.lanes - 1) / t.lanes;
  const int64_t fill = Context::get(x.device()).multiprocessors() * blocks_per_sm / t.tiles;
  const int64_t most = (t.rows + t.row_lanes - 1) / t.row_lanes;
  const int64_t least = most / kRowsPerThread;
  t.chunks = t.tiles > kTileCounters ? 1 : std::max<int64_t>(1, std::min(most, std::max(fill, least)));
  t.step = t.row_lanes * t.chunks;
  t.full = t.rows / t.step;
  t.rest = t.rows % t.step;
  return t;
}

template <typename A>
__device__ A not_negative(A v) {  // NaN stays
  return v < A(0) ? A(0) : v;
}

// What a thread, a block, then all blocks know of one channel: a pair that folds into sums over `count` rows.
struct Moments {  // a: mean - origin, b: sum of (x - mean)^2
  static __device__ void fold(float2 pair, int64_t count, double& s1, double& s2) {
    const double n = static_cast<double>(count), a = pair.x;
    s1 += n * a;
    s2 += pair.y + n * a * a;
  }
  static __device__ float2 close(int64_t count, double s1, double s2) {
    const double mean = s1 / static_cast<double>(count);
    return make_float2(static_cast<float>(mean), static_cast<float>(not_negative(s2 - s1 * mean)));
  }
};
struct Sums {  // a: sum of g, b: sum of g (x - mean)
  static __device__ void fold(float2 pair, int64_t, double& s1, double& s2) {
    s1 += pair.x;
    s2 += pair.y;
  }
  static __device__ float2 close(int64_t, double s1, double s2) {
    return make_float2(static_cast<float>(s1), static_cast<float>(s2));
  }
};

// Folds the pairs of all threads to one a block and channel, in partial [chunks, C], and in the last block of a tile
// over the chunks in FP64: finish(channel, s1, s2) is called once a channel. Every thread of the block calls this.
template <typename Kind, int V, typename Finish>
__device__ void fold_rows(const Tiling& t, const float (&a)[V], const float (&b)[V], float2* partial, int slot,
                          Finish finish) {
  __shared__ float2 pair[kReduceThreads * (V + 1)];  // row_lanes rows of width + 1: odd, so that banks do not collide
  const int width = t.lanes * V, lane = static_cast<int>(threadIdx.x) % t.lanes;
#pragma unroll
  for (int j = 0; j < V; ++j) pair[t.row_lane() * (width + 1) + lane * V + j] = make_float2(a[j], b[j]);
  __syncthreads();

  // From here on `parts` neighbouring lanes of a warp share a channel.
  const int parts = min(32, kReduceThreads / width), part = static_cast<int>(threadIdx.x) % parts;
  const int at = static_cast<int>(threadIdx.x) / parts;
  const int64_t channel = t.tile() * width + at, chunk = t.chunk();
  const bool mine = at < width && channel < t.channels;
  const auto over_parts = [&](double& s) {
    for (int other = parts / 2; other > 0; other /= 2) s += __shfl_xor_sync(0xffffffffu, s, other);
  };
  double s1 = 0, s2 = 0;
  if (mine)
    for (int i = part; i < t.row_lanes; i += parts) Kind::fold(pair[i * (width + 1) + at], t.count(chunk, i), s1, s2);
  over_parts(s1);
  over_parts(s2);
  if (t.chunks > 1) {
    if (mine && part == 0) partial[chunk * t.channels + channel] = Kind::close(t.count(chunk), s1, s2);
    if (!last_block(&tiles_done[slot][t.tile()], static_cast<unsigned>(t.chunks))) return;
    s1 = s2 = 0;
    for (int64_t i = part; mine && i < t.chunks; i += 8 * parts) {
      float2 some[8];
#pragma unroll
      for (int u = 0; u < 8; ++u)
        if (i + u * parts < t.chunks) some[u] = __ldcg(partial + (i + u * parts) * t.channels + channel);
#pragma unroll
      for (int u = 0; u < 8; ++u)
        if (i + u * parts < t.chunks) Kind::fold(some[u], t.count(i + u * parts), s1, s2);
    }
    over_parts(s1);
    over_parts(s2);
  }
  if (mine && part == 0) finish(channel, s1, s2);
}

}  // namespace demi::kernels::cuda::batch_norm
