#include "demi/core/caching_allocator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace demi::memory {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSmall = kMiB;  // requests up to here share small segments
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kMedium = 10 * kMiB;  // requests below share medium segments
constexpr size_t kMediumSegment = 20 * kMiB;
constexpr size_t kGranule = 2 * kMiB;             // of larger segments: what drivers hand out anyway
constexpr size_t kLargestRequest = SIZE_MAX / 4;  // beyond, rounding could overflow

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string text_of(size_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  if (bytes < kMiB) return fmt::format("{:.1f} KiB", b / 1024);
  if (bytes < 1024 * kMiB) return fmt::format("{:.1f} MiB", b / kMiB);
  return fmt::format("{:.2f} GiB", b / (1024.0 * kMiB));
}

thread_local Pool* active_pool = nullptr;  // innermost PrivatePool::Use of this thread

}  // namespace

struct CachingAllocator::Block {
  char* address;
  size_t size;       // a multiple of the alignment
  size_t requested;  // of a live block
  Pool* pool;
  FreeList* home;  // where it goes when it is free
  Block* before;   // neighbours in the segment
  Block* after;
  bool free;

  bool is_segment() const { return !before && !after; }
};

bool CachingAllocator::BySize::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a->address < b->address;
}

struct Pool {
  CachingAllocator* owner;
  Pool* outer = nullptr;                                                      // the Use around the one of this pool
  std::map<std::pair<void*, bool>, CachingAllocator::FreeList> free_lists{};  // by stream and whether blocks are small
  std::vector<CachingAllocator::Block*> held{};  // blocks of other pools, freed while this one was in use
  size_t segments = 0;
  bool closed = false;
};

CachingAllocator::CachingAllocator(std::unique_ptr<Source> source, size_t limit)
    : source_(std::move(source)), alignment_(source_->alignment()), common_(new Pool{.owner = this}) {
  statistics_.limit = limit;
}

CachingAllocator::~CachingAllocator() {
  release_free_segments(*common_);
  for (const auto& pool : private_) release_free_segments(*pool);
}

void* CachingAllocator::allocate(size_t bytes, Category category) {
  void* stream = source_->stream();  // may create it, so not under the lock
  const std::lock_guard lock(mutex_);
  if (bytes > kLargestRequest) fail_exhausted(bytes);
  const size_t size = round_up(std::max<size_t>(bytes, 1), alignment_);
  const bool small = size <= kSmall;
  Pool& pool = current_pool();
  FreeList& list = pool.free_lists[{stream, small}];

  Block* block = take(list, size);
  if (!block) block = take_new_segment(pool, list, size);
  if (!block) block = take(pool.free_lists[{stream, !small}], size);
  if (!block && !source_->capturing()) {  // freeing device memory waits, which a capture forbids
    release_free_segments(*common_);
    block = take_new_segment(pool, list, size);
  }
  if (!block) fail_exhausted(bytes);
  split(block, size);

  block->requested = bytes;
  live_.emplace(block->address, block);
  source_->mark_usable(block->address, bytes);
  statistics_.by_category[static_cast<size_t>(category)] += bytes;
  statistics_.current += bytes;
  if (statistics_.current > statistics_.peak) {
    statistics_.peak = statistics_.current;
    statistics_.peak_by_category = statistics_.by_category;
  }
  return block->address;
}

void CachingAllocator::deallocate(void* memory, Category category) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(memory);
  if (found == live_.end()) {
    std::fprintf(stderr, "demi: %p was freed twice or never allocated\n", memory);
    std::abort();
  }
  Block* block = found->second;
  live_.erase(found);
  source_->mark_unusable(block->address, block->size);
  statistics_.by_category[static_cast<size_t>(category)] -= block->requested;
  statistics_.current -= block->requested;
  Pool* pool = active_pool;
  while (pool && pool->owner != this) pool = pool->outer;
  if (pool && block->pool != pool)
    pool->held.push_back(block);
  else
    give_back(block);
}

// The pool that serves this thread.
Pool& CachingAllocator::current_pool() {
  for (Pool* pool = active_pool; pool; pool = pool->outer)
    if (pool->owner == this) return *pool;
  DEMI_CHECK(!source_->capturing(), "[memory] {}: allocating while the stream is captured needs cuda::Graph",
             source_->name());
  return *common_;
}

// The smallest free block of at least `size` bytes, taken off the list; nullptr when there is none.
CachingAllocator::Block* CachingAllocator::take(FreeList& list, size_t size) {
  Block wanted{};
  wanted.size = size;
  const auto found = list.lower_bound(&wanted);
  if (found == list.end()) return nullptr;
  Block* block = *found;
  list.erase(found);
  block->free = false;
  return block;
}

// A segment as one block; nullptr when the source or the limit has no room.
CachingAllocator::Block* CachingAllocator::take_new_segment(Pool& pool, FreeList& list, size_t size) {
  size_t preferred = size <= kSmall ? kSmallSegment : size < kMedium ? kMediumSegment : round_up(size, kGranule);
  // Under a limit no segment takes more than 1/64 of it beyond what was asked.
  const size_t limit = statistics_.limit;
  if (limit > 0) preferred = std::min(preferred, size + limit / 64 / alignment_ * alignment_);
  for (const size_t bytes : {preferred, size}) {
    if (limit > 0 && (statistics_.reserved >= limit || bytes > limit - statistics_.reserved)) continue;
    void* memory = source_->allocate(bytes);
    if (!memory) continue;
    source_->mark_unusable(memory, bytes);
    statistics_.reserved += bytes;
    ++pool.segments;
    return new Block{.address = static_cast<char*>(memory),
                     .size = bytes,
                     .requested = 0,
                     .pool = &pool,
                     .home = &list,
                     .before = nullptr,
                     .after = nullptr,
                     .free = false};
  }
  return nullptr;
}

// Cuts the block to `size`; the rest becomes a free block.
void CachingAllocator::split(Block* block, size_t size) {
  if (block->size == size) return;
  Block* rest = new Block(*block);
  rest->address += size;
  rest->size -= size;
  rest->before = block;
  rest->free = true;
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->size = size;
  block->home->insert(rest);
}

void CachingAllocator::give_back(Block* block) noexcept {
  if (Block* next = block->after; next && next->free) {
    next->home->erase(next);
    block->size += next->size;
    block->after = next->after;
    if (block->after) block->after->before = block;
    delete next;
  }
  if (Block* previous = block->before; previous && previous->free) {
    previous->home->erase(previous);
    previous->size += block->size;
    previous->after = block->after;
    if (previous->after) previous->after->before = previous;
    delete std::exchange(block, previous);
  }
  block->free = true;
  block->home->insert(block);
  Pool* pool = block->pool;
  if (!pool->closed || !block->is_segment()) return;
  block->home->erase(block);
  release_segment(block);
  if (pool->segments == 0) std::erase_if(private_, [=](const auto& p) { return p.get() == pool; });
}

void CachingAllocator::release_free_segments(Pool& pool) noexcept {
  for (auto& [key, list] : pool.free_lists) {
    for (auto at = list.begin(); at != list.end();) {
      Block* block = *at;
      if (!block->is_segment()) {
        ++at;
        continue;
      }
      at = list.erase(at);
      release_segment(block);
    }
  }
}

void CachingAllocator::release_segment(Block* block) noexcept {
  source_->mark_usable(block->address, block->size);
  source_->release(block->address);
  statistics_.reserved -= block->size;
  --block->pool->segments;
  delete block;
}

void CachingAllocator::fail_exhausted(size_t bytes) {
  std::string live;
  for (size_t i = 0; i < kCategories; ++i) {
    if (statistics_.by_category[i] == 0) continue;
    live += live.empty() ? " (" : ", ";
    live += fmt::format("{} {}", name_of(static_cast<Category>(i)), text_of(statistics_.by_category[i]));
  }
  if (!live.empty()) live += ")";
  std::string room;
  if (statistics_.limit > 0) room = fmt::format(", the limit is {}", text_of(statistics_.limit));
  if (const size_t available = source_->available(); available > 0)
    room += fmt::format(", the device has {} free", text_of(available));
  fail("[memory] {} has no room for {}: live {}{}, reserved {}{}; a smaller batch{} would help", source_->name(),
       text_of(bytes), text_of(statistics_.current), live, text_of(statistics_.reserved), room,
       statistics_.limit > 0 ? ", fp16 or a higher DEMI_MEMORY_LIMIT" : " or fp16");
}

Statistics CachingAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  statistics_.peak = statistics_.current;
  statistics_.peak_by_category = statistics_.by_category;
}

void CachingAllocator::set_limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  statistics_.limit = bytes;
  if (bytes > 0 && statistics_.reserved > bytes && !source_->capturing()) release_free_segments(*common_);
}

void CachingAllocator::release_cached() {
  const std::lock_guard lock(mutex_);
  DEMI_CHECK(!source_->capturing(), "[memory] {}: nothing can be released while the stream is captured",
             source_->name());
  release_free_segments(*common_);
}

Pool* CachingAllocator::open_pool() {
  const std::lock_guard lock(mutex_);
  private_.push_back(std::unique_ptr<Pool>(new Pool{.owner = this}));
  return private_.back().get();
}

void CachingAllocator::close_pool(Pool* pool) noexcept {
  const std::lock_guard lock(mutex_);
  pool->closed = true;
  for (Block* block : std::exchange(pool->held, {})) give_back(block);
  release_free_segments(*pool);
  if (pool->segments == 0) std::erase_if(private_, [=](const auto& p) { return p.get() == pool; });
}

PrivatePool::Use::Use(PrivatePool& pool) : pool_(pool.pool_) { pool_->outer = std::exchange(active_pool, pool_); }
PrivatePool::Use::~Use() { active_pool = pool_->outer; }

}  // namespace demi::memory
