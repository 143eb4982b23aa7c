// core/backend.h over the CUDA runtime.
#include "demi/core/backend.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstring>

#include "demi/core/cuda/context.h"

namespace demi::cuda {

void throw_error(cudaError_t error, const char* expression, const char* file, int line) {
  (void)cudaGetLastError();
  const char* slash = std::strrchr(file, '/');
  fail("{}: {} ({}) at {}:{}", expression, cudaGetErrorName(error), cudaGetErrorString(error), slash ? slash + 1 : file,
       line);
}

}  // namespace demi::cuda

namespace demi::backend {
namespace {

cuda::Context& context_of(int device) { return cuda::Context::get(Device::cuda(device)); }
cudaStream_t stream_of(int device) { return context_of(device).stream(); }

// Lets this thread call what allocates while one of its streams is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

void refuse_capture(const char* what, int device) {
  DEMI_CHECK(!capturing(device), "[{}] the stream of cuda:{} is being captured, and this needs the host", what, device);
}

std::string version_text(int major, int minor) { return fmt::format("{}.{}", major, minor); }

}  // namespace

int device_count() {
  static const int count = [] {
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    (void)cudaGetLastError();  // no driver, or one too old
    return 0;
  }();
  return count;
}

void* allocate(int device, size_t bytes) {
  const DeviceScope scope(device);
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  DEMI_CUDA_CHECK(error);
  return memory;
}

void release(int device, void* memory) noexcept {
  int before = -1;
  const bool switched =
      cudaGetDevice(&before) == cudaSuccess && before != device && cudaSetDevice(device) == cudaSuccess;
  {
    const RelaxedCapture relaxed;
    (void)cudaFree(memory);  // waits for all work of the device
  }
  if (switched) (void)cudaSetDevice(before);
  (void)cudaGetLastError();
}

void* current_stream(int device) { return stream_of(device); }

void synchronize(int device) {
  refuse_capture("synchronize", device);
  const DeviceScope scope(device);
  DEMI_CUDA_CHECK(cudaStreamSynchronize(stream_of(device)));
  cuda::throw_pending_error(Device::cuda(device));
}

void release_workspace(int device) { (void)context_of(device).exchange_workspace({}); }

bool capturing(int device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  DEMI_CUDA_CHECK(cudaStreamIsCapturing(stream_of(device), &status));
  return status != cudaStreamCaptureStatusNone;
}

size_t free_memory(int device) {
  const DeviceScope scope(device);
  const RelaxedCapture relaxed;
  size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) == cudaSuccess) return available;
  (void)cudaGetLastError();
  return 0;
}

DeviceScope::DeviceScope(int device) {
  if (device < 0) return;
  int current = -1;
  DEMI_CUDA_CHECK(cudaGetDevice(&current));
  if (current == device) return;
  DEMI_CUDA_CHECK(cudaSetDevice(device));
  before_ = current;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

void copy_to_device(int device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  refuse_capture("copy", device);
  const DeviceScope scope(device);
  cuda::Context& context = context_of(device);
  context.staging().copy(to, from, bytes, context.stream());
}

void copy_to_host(int device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  refuse_capture("copy", device);
  const DeviceScope scope(device);
  DEMI_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(device)));
  DEMI_CUDA_CHECK(cudaStreamSynchronize(stream_of(device)));
  cuda::throw_pending_error(Device::cuda(device));
}

void copy_on_device(int device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  DEMI_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(device)));
}

void copy_between_devices(int to_device, void* to, int from_device, const void* from, size_t bytes) {
  if (bytes == 0) return;
  refuse_capture("copy", to_device);
  refuse_capture("copy", from_device);
  // The destination's stream copies once the source is written, and the source may be overwritten after that.
  const cudaStream_t there = stream_of(to_device), here = stream_of(from_device);
  cuda::Event written, copied;
  {
    const DeviceScope scope(from_device);
    DEMI_CUDA_CHECK(cudaEventCreateWithFlags(written.out(), cudaEventDisableTiming));
    DEMI_CUDA_CHECK(cudaEventRecord(written.get(), here));
  }
  {
    const DeviceScope scope(to_device);
    DEMI_CUDA_CHECK(cudaEventCreateWithFlags(copied.out(), cudaEventDisableTiming));
    DEMI_CUDA_CHECK(cudaStreamWaitEvent(there, written.get(), 0));
    DEMI_CUDA_CHECK(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, there));
    DEMI_CUDA_CHECK(cudaEventRecord(copied.get(), there));
  }
  const DeviceScope scope(from_device);
  DEMI_CUDA_CHECK(cudaStreamWaitEvent(here, copied.get(), 0));
}

void fill_zero(int device, void* to, size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  DEMI_CUDA_CHECK(cudaMemsetAsync(to, 0, bytes, stream_of(device)));
}

DeviceInfo device_info(int device) {
  (void)Device::cuda(device);  // throws when there is none
  cudaDeviceProp properties;
  DEMI_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return {.name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = properties.totalGlobalMem,
          .l2_bytes = static_cast<size_t>(properties.l2CacheSize)};
}

Versions versions() {
  Versions v;
  int number = 0;
  if (cudaDriverGetVersion(&number) == cudaSuccess && number > 0)
    v.driver = version_text(number / 1000, number % 1000 / 10);
  if (cudaRuntimeGetVersion(&number) == cudaSuccess) v.runtime = version_text(number / 1000, number % 1000 / 10);
  (void)cudaGetLastError();
  const size_t cudnn = cudnnGetVersion(), cublas = cublasLtGetVersion();
  v.cudnn = fmt::format("{}.{}.{}", cudnn / 10000, cudnn / 100 % 100, cudnn % 100);
  v.cublas = fmt::format("{}.{}.{}", cublas / 10000, cublas / 100 % 100, cublas % 100);
  v.built_with = fmt::format("CUDA {}.{}, cuDNN {}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, CUDNN_MAJOR,
                             CUDNN_MINOR);
  return v;
}

}  // namespace demi::backend
