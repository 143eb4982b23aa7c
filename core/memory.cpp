#include "demi/core/memory.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "demi/core/backend.h"
#include "demi/core/caching_allocator.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace demi::memory {
namespace {

thread_local Category category_now = Category::Activations;

class SystemSource : public Source {
 public:
  std::string name() const override { return "cpu"; }
  size_t alignment() const override { return 64; }
  void* allocate(size_t bytes) override {
    constexpr size_t kHugePage = size_t{2} << 20;
    if (bytes < kHugePage) return std::aligned_alloc(64, bytes);
    void* memory = nullptr;  // aligned_alloc() would want a size that is a multiple of the alignment
    if (posix_memalign(&memory, kHugePage, bytes) != 0) return nullptr;
    (void)madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // fewer page faults; only a hint
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
#if defined(__SANITIZE_ADDRESS__)
  void mark_usable(void* memory, size_t bytes) noexcept override { __asan_unpoison_memory_region(memory, bytes); }
  void mark_unusable(void* memory, size_t bytes) noexcept override { __asan_poison_memory_region(memory, bytes); }
#endif
};

class DeviceSource : public Source {
 public:
  explicit DeviceSource(int index) : index_(index) {}
  std::string name() const override { return fmt::format("cuda:{}", index_); }
  size_t alignment() const override { return 512; }
  void* allocate(size_t bytes) override { return backend::allocate(index_, bytes); }
  void release(void* memory) noexcept override { backend::release(index_, memory); }
  void* stream() override { return backend::current_stream(index_); }
  bool capturing() override { return backend::capturing(index_); }
  size_t available() override { return backend::free_memory(index_); }

 private:
  int index_;
};

size_t limit_from_environment() {
  const char* text = std::getenv("DEMI_MEMORY_LIMIT");
  if (!text) return 0;
  try {
    return parse_size(text);
  } catch (const Error& error) {
    fail("DEMI_MEMORY_LIMIT: {}", error.what());
  }
}

// One allocator a device, never destroyed: tensors in globals may be freed at any time of the exit.
constexpr size_t kDevices = 128;
constinit std::array<std::atomic<CachingAllocator*>, 1 + kDevices> allocators{};
constinit std::mutex allocators_mutex;

CachingAllocator& allocator_of(Device device) {
  const size_t slot = device.is_cpu() ? 0 : 1 + static_cast<size_t>(device.index());
  DEMI_CHECK(slot < allocators.size(), "[memory] device {} is beyond the {} that are supported", device, kDevices);
  if (CachingAllocator* made = allocators[slot].load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(allocators_mutex);
  if (!allocators[slot].load(std::memory_order_relaxed)) {
    std::unique_ptr<Source> source;
    if (device.is_cpu())
      source = std::make_unique<SystemSource>();
    else
      source = std::make_unique<DeviceSource>(device.index());
    allocators[slot].store(new CachingAllocator(std::move(source), limit_from_environment()),
                           std::memory_order_release);
  }
  return *allocators[slot].load(std::memory_order_relaxed);
}

double mib(size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

}  // namespace

const char* name_of(Category category) {
  constexpr std::array<const char*, kCategories> kNames{"weights",     "compute copies", "gradients", "optimizer state",
                                                        "activations", "workspace",      "data"};
  return kNames[static_cast<size_t>(category)];
}

Category current_category() { return category_now; }
Scope::Scope(Category category) : before_(std::exchange(category_now, category)) {}
Scope::~Scope() { category_now = before_; }

Statistics statistics(Device device) { return allocator_of(device).statistics(); }

void reset_peak(Device device) { allocator_of(device).reset_peak(); }

std::string report(Device device) {
  const Statistics s = statistics(device);
  std::string table = fmt::format("{:<16}{:>12}{:>12}\n", fmt::format("{}, MiB", device), "live", "at peak");
  for (size_t i = 0; i < kCategories; ++i)
    table += fmt::format("{:<16}{:>12.2f}{:>12.2f}\n", name_of(static_cast<Category>(i)), mib(s.by_category[i]),
                         mib(s.peak_by_category[i]));
  table += fmt::format("{:<16}{:>12.2f}{:>12.2f}\n", "total", mib(s.current), mib(s.peak));
  table += fmt::format("{:<16}{:>12.2f}\n", "reserved", mib(s.reserved));
  if (s.limit > 0) table += fmt::format("{:<16}{:>12.2f}\n", "limit", mib(s.limit));
  return table;
}

void release_cached(Device device) {
  if (device.is_cuda()) backend::release_workspace(device.index());
  allocator_of(device).release_cached();
}

void set_limit(Device device, size_t bytes) { allocator_of(device).set_limit(bytes); }

size_t parse_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, int>, 6> kUnits{
      {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  size_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{}) {
    std::string_view unit(stop, static_cast<size_t>(end - stop));
    const bool spaced = unit.starts_with(' ');
    if (spaced) unit.remove_prefix(1);
    for (const auto& [name, shift] : kUnits)
      if (unit == name && !(spaced && name.empty()) && number <= (SIZE_MAX >> shift)) return number << shift;
  }
  fail("'{}' is no size: a whole number of bytes, KiB, MiB, GiB or TiB, such as 8GiB", text);
}

void* allocate(Device device, size_t bytes, Category category) {
  return allocator_of(device).allocate(bytes, category);
}

void deallocate(Device device, void* block, Category category) noexcept {
  allocator_of(device).deallocate(block, category);
}

PrivatePool::PrivatePool(Device device) : device_(device), pool_(allocator_of(device).open_pool()) {}
PrivatePool::~PrivatePool() { allocator_of(device_).close_pool(pool_); }

}  // namespace demi::memory
