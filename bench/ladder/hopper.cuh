// Hopper's own instructions (compute capability 9.0, built for sm_90a), one function each: barriers in shared memory,
// bulk tensor copies, products by a warpgroup (128 threads). Elsewhere they compile and stop where they are met.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace demi::bench::ladder::hopper {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DEMI_PTX(...) asm volatile(__VA_ARGS__)
#else
#define DEMI_PTX(...) __trap()
#endif

// A barrier of 8 bytes in shared memory, by its address there. A phase ends when `arrivals` threads have arrived and
// all bytes announced in it have come; phases alternate between parity 0 and 1, beginning with 0.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  DEMI_PTX("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes barriers that this thread initialized visible to the copy engine.
__device__ __forceinline__ void publish_barriers() { DEMI_PTX("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint32_t barrier) {
  DEMI_PTX("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, int bytes) {
  DEMI_PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns when the phase of this parity has ended; at once when it is the one before the present phase.
__device__ __forceinline__ void wait(uint32_t barrier, int parity) {
  DEMI_PTX(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Starts the copy of a box of a row-major matrix, whose corner is at (row, column), to shared memory; the map knows the
// matrix, the box and the swizzle. The bytes are counted at the barrier.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, int row, int column, uint32_t barrier) {
  DEMI_PTX(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// Registers move from the warpgroup that only copies to those that multiply; all four warps call it.
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  DEMI_PTX("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  DEMI_PTX("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Before the first product that uses registers which this thread has written.
__device__ __forceinline__ void fence_products() { DEMI_PTX("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { DEMI_PTX("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `kPending` of the warpgroup's groups are under way, the youngest ones.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  DEMI_PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Where an operand lies, for wgmma: rows of 64 FP16 elements (128 bytes) one after the other, their eight 16-byte
// pieces swizzled as the copy engine writes them (piece p of row r at p ^ (r % 8)); 8 rows are 1024 bytes, from an
// address that is a multiple of that. Add 2 for the next 16 of k: addresses count in 16 bytes.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 / 16} << 32,
                     kUnused = uint64_t{1} << 16;
  return kSwizzle128 | kEightRows | kUnused | (address & 0x3FFFF) >> 4;
}

#define DEMI_16(v, i)                                                                                         \
  "+f"(v[i]), "+f"(v[i + 1]), "+f"(v[i + 2]), "+f"(v[i + 3]), "+f"(v[i + 4]), "+f"(v[i + 5]), "+f"(v[i + 6]), \
      "+f"(v[i + 7]), "+f"(v[i + 8]), "+f"(v[i + 9]), "+f"(v[i + 10]), "+f"(v[i + 11]), "+f"(v[i + 12]),      \
      "+f"(v[i + 13]), "+f"(v[i + 14]), "+f"(v[i + 15])

// c = a b^T + (add ? c : 0), a 64 x 16 and b 256 x 16 of FP16, c 64 x 256 of FP32: with row = 16 (warp of the group) +
// l / 4 and column = 2 (l % 4), lane l holds in c[4 j ...] the elements [row][8 j + column, +1], [row + 8][same].
__device__ __forceinline__ void multiply(float (&c)[128], uint64_t a, uint64_t b, bool add) {
  DEMI_PTX(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, add, 1, 1, 0, 0;\n"
      "}\n"
      : DEMI_16(c, 0), DEMI_16(c, 16), DEMI_16(c, 32), DEMI_16(c, 48), DEMI_16(c, 64), DEMI_16(c, 80), DEMI_16(c, 96),
        DEMI_16(c, 112)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

#undef DEMI_16
#undef DEMI_PTX

}  // namespace demi::bench::ladder::hopper
