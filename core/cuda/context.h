// Context: what CUDA work needs and nothing else is ambient: one non-blocking stream per thread and device, and the
// library handles and workspace that belong to it.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include "demi/core/cuda/check.h"
#include "demi/core/cuda/handle.h"
#include "demi/core/cuda/staging.h"
#include "demi/core/device.h"
#include "demi/core/tensor.h"

namespace demi::cuda {

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;

class Context {
 public:
  // This thread's context for the device, made on first use. When the thread ends, another may take it over; contexts
  // are never destroyed, since at the process's exit the runtime may be gone before them.
  static Context& get(Device device);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cudaStream_t stream() const { return stream_.get(); }
  cudnnHandle_t cudnn();  // made on first use, bound to stream()
  cublasLtHandle_t cublaslt();
  // Scratch memory for one library call, at least `bytes` long, 256-byte aligned; work that follows on stream() may
  // overwrite it. Grows on demand.
  void* workspace(size_t bytes);
  // Sets another workspace and returns the one before: a capture has its own, which stays with the graph.
  Tensor exchange_workspace(Tensor workspace);
  Staging& staging() { return staging_; }
  int multiprocessors() const { return multiprocessors_; }
  int number() const { return number_; }  // among the contexts of its device, from 0: those in use at once differ

 private:
  explicit Context(Device device);
  Device device_;
  Stream stream_;
  Handle<cudnnHandle_t, cudnnDestroy> cudnn_;
  Handle<cublasLtHandle_t, cublasLtDestroy> cublaslt_;
  Tensor workspace_;
  Staging staging_;
  int multiprocessors_ = 0, number_ = 0;
};

// What a kernel saw and cannot throw: written to mapped pinned memory by the device, thrown as an Error at the next
// synchronization or copy to the host, then cleared. The first report wins. While `code` is set optimizers skip.
struct ErrorWord {
  enum Code : int { None = 0, LabelOutOfRange = 1, TooManyOverflows = 2 };
  int code;
  int detail;     // LabelOutOfRange: the number of classes; TooManyOverflows: consecutive overflows
  int64_t index;  // LabelOutOfRange: the sample; TooManyOverflows: the attempted step
  int64_t value;  // LabelOutOfRange: the label
  int* claimed;   // in device memory: 1 once a thread has won; atomics on host memory are not to be had over PCIe
};
ErrorWord* error_word(Device device);     // the device's address of the word, for kernels
void throw_pending_error(Device device);  // host: throws and clears when the word is set (does not synchronize)

#if defined(__CUDACC__)
// Device side: the first thread to report wins; the code is published last, so the host never reads half a report.
__device__ inline void report_error(ErrorWord* word, ErrorWord::Code code, int detail, int64_t index, int64_t value) {
  if (atomicCAS(word->claimed, 0, 1) != 0) return;
  word->detail = detail;
  word->index = index;
  word->value = value;
  __threadfence_system();
  *static_cast<volatile int*>(&word->code) = code;
}
#endif

}  // namespace demi::cuda
