// Instructions that C++ has no word for, one function each. From compute capability 8.0 on: code for older cards
// compiles, and stops where it meets one.
#pragma once

#include <cstdint>

namespace demi::bench::ladder::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define DEMI_PTX(...) asm volatile(__VA_ARGS__)
#else
#define DEMI_PTX(...) __trap()
#endif

// Where p lies within the block's shared memory: the form of address that the instructions below take.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Starts a copy of 16 bytes from global to shared memory that passes neither registers nor the L1.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  DEMI_PTX("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Closes this thread's group of copies started since the last one; an empty group counts as well.
__device__ __forceinline__ void commit_copies() { DEMI_PTX("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kPending` of this thread's groups are under way, the youngest ones.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  DEMI_PTX("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8; of matrix q it gets,
// in v[q], the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&v)[4], uint32_t row) {
  DEMI_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
           : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
           : "r"(row)
           : "memory");
}

// c += a b, a 16 x 16 and b 16 x 8 of FP16, c 16 x 8 of FP32. With row = l / 4 and column = 2 (l % 4), lane l holds
//   a: [row][column, +1], [row + 8][...], [row][column + 8, +9], [row + 8][column + 8, +9]
//   b: [k = column, +1][n = row], [k = column + 8, +9][n = row]
//   c: [row][column, +1], [row + 8][column, +1]
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  DEMI_PTX(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#undef DEMI_PTX

}  // namespace demi::bench::ladder::ptx
