// Counter-based random numbers: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC
// 2011). A number is a pure function of a key and a counter, so every thread computes its own and both backends agree.
#pragma once

#include <cstdint>

#include "demi/core/dtype.h"

namespace demi {

struct Philox {
  uint32_t word[4];

  // The four random words of block `counter` in stream `stream` of `seed`.
  DEMI_HOST_DEVICE Philox(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
    uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      c0 = n0;
      c2 = n2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
  }

  // Uniform in [0, 1): never exactly 1, so a keep probability of 1 keeps everything and 0 nothing.
  DEMI_HOST_DEVICE float uniform(int i) const { return static_cast<float>(word[i] >> 8) * 0x1p-24f; }
};

// Mixes two numbers into one stream id (SplitMix64's finalizer).
DEMI_HOST_DEVICE inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15ull + b + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace demi
