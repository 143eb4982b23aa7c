// What core needs from the CUDA runtime, as plain functions: core/cuda/backend.cpp implements them, or, in a build
// without CUDA, core/cuda/absent.cpp, where there are no devices and nothing else can be reached.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace demi::backend {

int device_count();                               // 0 without a driver, a device or CUDA itself; never throws
void* allocate(int device, size_t bytes);         // raw device memory; nullptr when the device is out of memory
void release(int device, void* memory) noexcept;  // waits for the device's pending work, then frees
void* current_stream(int device);                 // the calling thread's stream, as an opaque key
void synchronize(int device);                     // waits for the calling thread's stream; throws pending kernel errors
bool capturing(int device);                       // the stream is being captured into a graph
// Whether this thread is inside the capture of a cuda::Graph; then around_replays() leaves host code that runs before
// and after the launch of each later replay (either may be empty). Of those with one key the first stays.
bool capturing_graph();
void around_replays(const void* key, std::function<void()> before, std::function<void()> after);
void release_workspace(int device);  // what the calling thread's library calls used as scratch
size_t free_memory(int device);      // bytes the driver would still give

// Makes a device current for its lifetime and restores the one before; nothing happens for a negative index (the CPU).
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
};

// All are ordered on the calling thread's stream. Copies to or from ordinary host memory are complete on return.
void copy_to_device(int device, void* to, const void* from, size_t bytes);
void copy_to_host(int device, void* to, const void* from, size_t bytes);
void copy_on_device(int device, void* to, const void* from, size_t bytes);
void copy_between_devices(int to_device, void* to, int from_device, const void* from, size_t bytes);
void fill_zero(int device, void* to, size_t bytes);

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  size_t memory_bytes = 0, l2_bytes = 0;
};
DeviceInfo device_info(int device);

struct Versions {
  std::string driver, runtime, cudnn, cublas;  // "13.0"; empty where there is none
  std::string built_with;                      // "CUDA 13.0, cuDNN 9.19", or "no CUDA"
};
Versions versions();

}  // namespace demi::backend
