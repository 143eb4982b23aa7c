// The caching allocator behind memory::allocate: takes segments from the system or a device, cuts blocks from them, and
// keeps what is freed for the next request, because asking the driver (or the kernel's page faults) costs far more.
//
// A segment is a chain of blocks. A request takes the smallest free block that holds it, and what is left over becomes
// a free block of its own; a freed block merges with its free neighbours. Requests up to 1 MiB live in segments of 2
// MiB, larger ones in segments of 20 MiB or, from 10 MiB on, in segments of their own, so that small blocks with long
// lives do not split up the large ones. Free blocks are kept by stream: reuse on the same stream needs no wait.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "demi/core/memory.h"

namespace demi::memory {

// Where segments come from.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;                // for errors: "cuda:0"
  virtual size_t alignment() const = 0;                // of every block; a power of two
  virtual void* allocate(size_t bytes) = 0;            // nullptr when there is no more
  virtual void release(void* memory) noexcept = 0;     // waits for work that may still use it
  virtual void* stream() { return nullptr; }           // the calling thread's stream, as an opaque key
  virtual bool capturing() { return false; }           // the stream is being captured into a graph
  virtual size_t available() { return 0; }             // bytes that could still be had; 0 when unknown
  virtual void mark_usable(void*, size_t) noexcept {}  // for AddressSanitizer
  virtual void mark_unusable(void*, size_t) noexcept {}
};

class CachingAllocator {
 public:
  CachingAllocator(std::unique_ptr<Source> source, size_t limit);
  ~CachingAllocator();  // everything must have been freed; the process's own allocators are never destroyed
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  void* allocate(size_t bytes, Category category);
  void deallocate(void* memory, Category category) noexcept;

  Statistics statistics() const;
  void reset_peak();
  void set_limit(size_t bytes);
  void release_cached();

  // A pool of segments apart from the common one; see memory::PrivatePool. A closed pool gives its free segments back
  // and ends when its last block is freed.
  Pool* open_pool();
  void close_pool(Pool* pool) noexcept;

 private:
  struct Block;
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  using FreeList = std::set<Block*, BySize>;
  friend struct memory::Pool;

  Pool& current_pool();
  Block* take(FreeList& list, size_t size);
  Block* take_new_segment(Pool& pool, FreeList& list, size_t size);
  void split(Block* block, size_t size);
  void give_back(Block* block) noexcept;
  void release_free_segments(Pool& pool) noexcept;
  void release_segment(Block* block) noexcept;
  [[noreturn]] void fail_exhausted(size_t bytes);

  const std::unique_ptr<Source> source_;
  const size_t alignment_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block*> live_;
  std::unique_ptr<Pool> common_;
  std::vector<std::unique_ptr<Pool>> private_;
  Statistics statistics_;
};

}  // namespace demi::memory
