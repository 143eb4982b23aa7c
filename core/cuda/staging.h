// Staging: a ring of pinned memory through which ordinary host memory reaches the device, so that a copy neither waits
// for the stream nor keeps the caller's memory busy.
#pragma once

#include <deque>
#include <vector>

#include "demi/core/cuda/check.h"
#include "demi/core/cuda/handle.h"

namespace demi::cuda {

using Event = Handle<cudaEvent_t, cudaEventDestroy>;

class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Copies to the device, ordered on the stream, the same one in every call. `from` may be changed on return. Waits
  // only while the ring is full of copies that are still under way.
  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream);

 private:
  struct Part {  // of the ring, busy until the event
    size_t begin, end;
    Event event;
  };
  void wait_for(size_t begin, size_t end);
  void retire_oldest();

  char* ring_ = nullptr;
  size_t next_ = 0;
  std::deque<Part> busy_;  // oldest first
  std::vector<Event> spare_;
};

}  // namespace demi::cuda
