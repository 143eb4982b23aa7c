#include "demi/core/cuda/context.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "demi/core/backend.h"
#include "demi/core/overflow.h"

namespace demi::cuda {
namespace {

constexpr size_t kDevices = 128;

// What lives as long as the process, on purpose never destroyed.
struct Shared {
  std::mutex mutex;
  std::array<std::vector<Context*>, kDevices> idle;         // contexts of threads that ended
  std::array<std::atomic<ErrorWord*>, kDevices> host_word;  // the host's address of each device's error word
  std::array<std::atomic<ErrorWord*>, kDevices> device_word;
  std::array<std::atomic<int>, kDevices> contexts;  // made so far
};
Shared& shared() {
  static Shared& it = *new Shared{};
  return it;
}

// Without a destructor, so that it can be used at any time of a thread's end; Return's destructor hands the contexts
// on.
thread_local std::array<Context*, kDevices> of_thread{};
struct Return {
  ~Return() {
    const std::lock_guard lock(shared().mutex);
    for (size_t i = 0; i < kDevices; ++i)
      if (Context* context = std::exchange(of_thread[i], nullptr)) shared().idle[i].push_back(context);
  }
};

size_t slot_of(Device device) {
  DEMI_CHECK(device.is_cuda(), "a CUDA context was asked for the device {}", device);
  DEMI_CHECK(static_cast<size_t>(device.index()) < kDevices, "device {} is beyond the {} that are supported", device,
             kDevices);
  return static_cast<size_t>(device.index());
}

ErrorWord* host_error_word(size_t slot) { return shared().host_word[slot].load(std::memory_order_acquire); }

std::string message_of(const ErrorWord& word, Device device) {
  switch (word.code) {
    case ErrorWord::LabelOutOfRange:
      return fmt::format("[cross_entropy] label {} of sample {} is out of range: the classes are 0 to {}", word.value,
                         word.index, word.detail - 1);
    case ErrorWord::TooManyOverflows:
      return overflow_message(device, word.detail, word.index);
    default:
      return fmt::format("a kernel reported the unknown error {}", word.code);
  }
}

}  // namespace

Context& Context::get(Device device) {
  const size_t slot = slot_of(device);
  if (of_thread[slot]) return *of_thread[slot];
  thread_local Return at_thread_end;
  (void)at_thread_end;
  {
    const std::lock_guard lock(shared().mutex);
    auto& idle = shared().idle[slot];
    if (!idle.empty()) {
      of_thread[slot] = idle.back();
      idle.pop_back();
      return *of_thread[slot];
    }
  }
  of_thread[slot] = new Context(device);
  return *of_thread[slot];
}

Context::Context(Device device) : device_(device) {
  const backend::DeviceScope scope(device.index());
  DEMI_CUDA_CHECK(cudaStreamCreateWithFlags(stream_.out(), cudaStreamNonBlocking));
  DEMI_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device.index()));
  (void)error_word(device);  // now: a capture could not make it
  number_ = shared().contexts[slot_of(device)]++;
}

cudnnHandle_t Context::cudnn() {
  if (!cudnn_) {
    const backend::DeviceScope scope(device_.index());
    Handle<cudnnHandle_t, cudnnDestroy> made;
    cudnnStatus_t status = cudnnCreate(made.out());
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(made.get(), stream());
    DEMI_CHECK(status == CUDNN_STATUS_SUCCESS, "cudnnCreate: {}", cudnnGetErrorString(status));
    cudnn_ = std::move(made);
  }
  return cudnn_.get();
}

cublasLtHandle_t Context::cublaslt() {
  if (!cublaslt_) {
    const backend::DeviceScope scope(device_.index());
    const cublasStatus_t status = cublasLtCreate(cublaslt_.out());
    DEMI_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLtCreate: {}", cublasLtGetStatusString(status));
  }
  return cublaslt_.get();
}

void* Context::workspace(size_t bytes) {
  if (workspace_.bytes() < bytes) {
    const memory::Scope category(memory::Category::Workspace);
    workspace_ = {};  // first, so that its place can be used again
    workspace_ = Tensor::empty(Shape{static_cast<int64_t>(bytes)}, DType::U8, device_);
  }
  return workspace_.mutable_raw();
}

Tensor Context::exchange_workspace(Tensor workspace) { return std::exchange(workspace_, std::move(workspace)); }

ErrorWord* error_word(Device device) {
  const size_t slot = slot_of(device);
  if (ErrorWord* word = shared().device_word[slot].load(std::memory_order_acquire)) return word;
  const std::lock_guard lock(shared().mutex);
  if (!shared().device_word[slot].load(std::memory_order_relaxed)) {
    const backend::DeviceScope scope(device.index());
    void *host = nullptr, *mapped = nullptr, *claimed = nullptr;
    DEMI_CUDA_CHECK(cudaHostAlloc(&host, sizeof(ErrorWord), cudaHostAllocMapped | cudaHostAllocPortable));
    DEMI_CUDA_CHECK(cudaMalloc(&claimed, sizeof(int)));
    DEMI_CUDA_CHECK(cudaMemset(claimed, 0, sizeof(int)));
    auto* word = new (host) ErrorWord{};
    word->claimed = static_cast<int*>(claimed);
    DEMI_CUDA_CHECK(cudaHostGetDevicePointer(&mapped, host, 0));
    shared().host_word[slot].store(word, std::memory_order_release);
    shared().device_word[slot].store(static_cast<ErrorWord*>(mapped), std::memory_order_release);
  }
  return shared().device_word[slot].load(std::memory_order_relaxed);
}

void throw_pending_error(Device device) {
  ErrorWord* word = host_error_word(slot_of(device));
  if (!word) return;
  std::atomic_ref<int> code(word->code);
  ErrorWord report;
  report.code = code.load(std::memory_order_acquire);
  if (report.code == ErrorWord::None) return;
  report.detail = word->detail;
  report.index = word->index;
  report.value = word->value;
  // Of threads that come here at once, one throws.
  if (!code.compare_exchange_strong(report.code, ErrorWord::None)) return;
  DEMI_CUDA_CHECK(cudaMemsetAsync(word->claimed, 0, sizeof(int), Context::get(device).stream()));
  throw Error(message_of(report, device));
}

}  // namespace demi::cuda
