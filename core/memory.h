// Memory: the categories that storage is counted under, statistics, limits, and the caching allocator behind Storage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "demi/core/device.h"

namespace demi::memory {

// What a block of bytes is for, so that "where did the memory go" has an answer.
enum class Category : uint8_t { Weights, ComputeCopies, Gradients, OptimizerState, Activations, Workspace, Data };
constexpr size_t kCategories = 7;
const char* name_of(Category category);

// The category of the storage that this thread allocates next; Activations unless a Scope says otherwise.
Category current_category();
class Scope {
 public:
  explicit Scope(Category category);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Category before_;
};

struct Statistics {
  size_t current = 0;   // bytes in live storage
  size_t peak = 0;      // the most that `current` has been since the start or reset_peak()
  size_t reserved = 0;  // bytes held from the device or the system, free cached blocks included
  size_t limit = 0;     // the cap on reserved bytes; 0 is none
  std::array<size_t, kCategories> by_category{};       // live bytes
  std::array<size_t, kCategories> peak_by_category{};  // what each category held when `current` was at its peak
};
Statistics statistics(Device device);
void reset_peak(Device device);
std::string report(Device device);  // a table for people: category, live and peak MiB

// Gives cached free blocks and the calling thread's library workspace back. A device's pending work is waited for.
void release_cached(Device device);

// Caps what the allocator of a device may hold. The environment's DEMI_MEMORY_LIMIT ("8GiB", "512MiB", bytes) sets the
// cap of every device at the start. 0 lifts it.
void set_limit(Device device, size_t bytes);
size_t parse_size(const std::string& text);  // "8GiB", "512 MiB", "1000000"; throws Error for anything else

// A block from the device's caching allocator, at least `bytes` long and 512-byte aligned (64 on the CPU). On
// exhaustion the cache is flushed and the call retried, then an Error tells what was asked, what is held and what would
// help. A freed block is reused by the stream that it was made on, so reuse needs no wait.
void* allocate(Device device, size_t bytes, Category category);
void deallocate(Device device, void* block, Category category) noexcept;

// The memory of a captured graph. While a Use lives, what its thread allocates on the device comes from segments of the
// pool alone, and what it frees is kept from everybody else: blocks of the pool serve the pool again, others wait for
// its end. So nothing that a later replay writes can meanwhile belong to somebody else. Tensors may outlive the pool:
// their segments go back with the last of them. One thread at a time uses a pool.
struct Pool;
class PrivatePool {
 public:
  explicit PrivatePool(Device device);
  ~PrivatePool();
  PrivatePool(const PrivatePool&) = delete;
  PrivatePool& operator=(const PrivatePool&) = delete;

  class Use {
   public:
    explicit Use(PrivatePool& pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Pool* pool_;
  };

 private:
  Device device_;
  Pool* pool_;
};

}  // namespace demi::memory
