#include "demi/core/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace demi::cuda {
namespace {
constexpr size_t kRing = size_t{8} << 20;
constexpr size_t kPart = size_t{1} << 20;  // so that filling one part overlaps with sending those before
constexpr size_t kAlignment = 256;
constexpr size_t kMostParts = 256;
}  // namespace

Staging::~Staging() {
  if (ring_) (void)cudaFreeHost(ring_);
}

void Staging::copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (!ring_) {
    void* memory = nullptr;
    DEMI_CUDA_CHECK(cudaHostAlloc(&memory, kRing, cudaHostAllocDefault));
    ring_ = static_cast<char*>(memory);
  }
  for (size_t done = 0; done < bytes;) {
    const size_t length = std::min(bytes - done, kPart);
    if (next_ + length > kRing) next_ = 0;
    const size_t begin = next_, end = begin + length;
    wait_for(begin, end);
    Event event;
    if (spare_.empty()) {
      DEMI_CUDA_CHECK(cudaEventCreateWithFlags(event.out(), cudaEventDisableTiming));
    } else {
      event = std::move(spare_.back());
      spare_.pop_back();
    }
    std::memcpy(ring_ + begin, static_cast<const char*>(from) + done, length);
    DEMI_CUDA_CHECK(
        cudaMemcpyAsync(static_cast<char*>(to) + done, ring_ + begin, length, cudaMemcpyHostToDevice, stream));
    DEMI_CUDA_CHECK(cudaEventRecord(event.get(), stream));
    busy_.push_back({begin, end, std::move(event)});
    next_ = (end + kAlignment - 1) / kAlignment * kAlignment;
    done += length;
  }
}

// Waits until no copy reads from [begin, end), and for the oldest where there are very many.
void Staging::wait_for(size_t begin, size_t end) {
  size_t retired = busy_.size() >= kMostParts ? 1 : 0;
  for (size_t i = busy_.size(); i > retired; --i)
    if (busy_[i - 1].begin < end && begin < busy_[i - 1].end) retired = i;
  for (; retired > 0; --retired) retire_oldest();
}

void Staging::retire_oldest() {
  DEMI_CUDA_CHECK(cudaEventSynchronize(busy_.front().event.get()));
  spare_.push_back(std::move(busy_.front().event));
  busy_.pop_front();
}

}  // namespace demi::cuda
