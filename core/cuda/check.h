// Turns error codes of the CUDA runtime into exceptions that carry expression, name, text and place.
#pragma once

#include <cuda_runtime_api.h>

#include "demi/core/error.h"

namespace demi::cuda {

// Clears the runtime's last error, so that the next call does not report this one again, and throws.
[[noreturn]] void throw_error(cudaError_t error, const char* expression, const char* file, int line);

}  // namespace demi::cuda

// DEMI_CUDA_CHECK(call): throws Error unless the call returned cudaSuccess. After a launch:
// DEMI_CUDA_CHECK(cudaGetLastError()).
#define DEMI_CUDA_CHECK(call)                                                                        \
  do {                                                                                               \
    const cudaError_t demi_error = (call);                                                           \
    if (demi_error != cudaSuccess) ::demi::cuda::throw_error(demi_error, #call, __FILE__, __LINE__); \
  } while (0)
