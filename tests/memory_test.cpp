// The caching allocator on a source that can be exhausted, and the public face of memory on the CPU.
#include "demi/core/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "demi/core/caching_allocator.h"
#include "demi/core/tensor.h"

namespace demi::memory {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr Category kAny = Category::Activations;

// Memory that exists and is counted, with a capacity and streams as the test says.
struct World {
  size_t capacity = SIZE_MAX, held = 0, calls = 0;
  void* stream = nullptr;
  bool capturing = false;
  std::map<void*, size_t> segments;
};

class WorldSource : public Source {
 public:
  explicit WorldSource(World& world) : world_(world) {}
  std::string name() const override { return "test"; }
  size_t alignment() const override { return 512; }
  void* allocate(size_t bytes) override {
    ++world_.calls;
    if (bytes > world_.capacity - world_.held) return nullptr;
    void* memory = std::aligned_alloc(512, bytes);
    world_.segments[memory] = bytes;
    world_.held += bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    world_.held -= world_.segments.at(memory);
    world_.segments.erase(memory);
    std::free(memory);
  }
  void* stream() override { return world_.stream; }
  bool capturing() override { return world_.capturing; }

 private:
  World& world_;
};

class AllocatorTest : public testing::Test {
 protected:
  CachingAllocator make(size_t limit = 0) { return {std::make_unique<WorldSource>(world), limit}; }
  World world;
};

TEST_F(AllocatorTest, BlocksAreAlignedDisjointAndWhole) {
  CachingAllocator allocator = make();
  std::mt19937 random(1);
  struct Live {
    void* memory;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Live> live;
  size_t expected = 0;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() > 60 || (!live.empty() && random() % 3 == 0)) {
      const size_t at = random() % live.size();
      const Live gone = live[at];
      const auto* bytes = static_cast<const unsigned char*>(gone.memory);
      ASSERT_EQ(bytes[0], gone.mark);
      ASSERT_EQ(bytes[gone.bytes - 1], gone.mark);
      allocator.deallocate(gone.memory, kAny);
      expected -= gone.bytes;
      live[at] = live.back();
      live.pop_back();
    } else {
      const size_t bytes = 1 + random() % (size_t{1} << (random() % 23));
      void* memory = allocator.allocate(bytes, kAny);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(memory) % 512, 0u);
      const auto mark = static_cast<unsigned char>(random());
      static_cast<unsigned char*>(memory)[0] = mark;
      static_cast<unsigned char*>(memory)[bytes - 1] = mark;
      live.push_back({memory, bytes, mark});
      expected += bytes;
    }
    ASSERT_EQ(allocator.statistics().current, expected);
    ASSERT_EQ(allocator.statistics().reserved, world.held);
  }
  for (const Live& block : live) allocator.deallocate(block.memory, kAny);
  allocator.release_cached();  // everything merged back into whole segments
  EXPECT_EQ(world.held, 0u);
  EXPECT_EQ(allocator.statistics().reserved, 0u);
}

TEST_F(AllocatorTest, FreedMemoryServesTheSameStreamAgain) {
  CachingAllocator allocator = make();
  int a = 0, b = 0;
  world.stream = &a;
  void* first = allocator.allocate(3 * kMiB, kAny);
  allocator.deallocate(first, kAny);
  world.stream = &b;
  void* other = allocator.allocate(3 * kMiB, kAny);
  EXPECT_NE(other, first);
  world.stream = &a;
  void* again = allocator.allocate(3 * kMiB, kAny);
  EXPECT_EQ(again, first);
  world.stream = &b;  // freed elsewhere: still stream a's
  allocator.deallocate(again, kAny);
  void* third = allocator.allocate(3 * kMiB, kAny);
  EXPECT_NE(third, first);
  world.stream = &a;
  EXPECT_EQ(allocator.allocate(3 * kMiB, kAny), first);
  for (void* memory : {first, other, third}) allocator.deallocate(memory, kAny);
  allocator.release_cached();
}

TEST_F(AllocatorTest, StepsAfterTheFirstTakeNothingNew) {
  CachingAllocator allocator = make();
  size_t after_first = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<void*> activations;
    for (size_t layer = 0; layer < 40; ++layer)
      activations.push_back(allocator.allocate((1 + layer % 7) * 900000, kAny));
    for (; !activations.empty(); activations.pop_back()) {
      void* gradient = allocator.allocate(1700000, kAny);
      allocator.deallocate(activations.back(), kAny);
      allocator.deallocate(gradient, kAny);
    }
    if (step == 0) after_first = world.calls;
  }
  EXPECT_EQ(world.calls, after_first);
  const Statistics s = allocator.statistics();
  EXPECT_LE(s.reserved, s.peak + s.peak / 10 + 20 * kMiB);
  allocator.release_cached();
}

TEST_F(AllocatorTest, CountsByCategoryAndAtThePeak) {
  CachingAllocator allocator = make();
  const auto at = [](Category c) { return static_cast<size_t>(c); };
  void* weights = allocator.allocate(1000, Category::Weights);
  void* activations = allocator.allocate(5000, Category::Activations);
  allocator.deallocate(activations, Category::Activations);
  void* gradients = allocator.allocate(2000, Category::Gradients);
  Statistics s = allocator.statistics();
  EXPECT_EQ(s.current, 3000u);
  EXPECT_EQ(s.peak, 6000u);
  EXPECT_EQ(s.by_category[at(Category::Weights)], 1000u);
  EXPECT_EQ(s.by_category[at(Category::Activations)], 0u);
  EXPECT_EQ(s.by_category[at(Category::Gradients)], 2000u);
  EXPECT_EQ(s.peak_by_category[at(Category::Activations)], 5000u);
  EXPECT_EQ(s.peak_by_category[at(Category::Gradients)], 0u);
  allocator.reset_peak();
  s = allocator.statistics();
  EXPECT_EQ(s.peak, 3000u);
  EXPECT_EQ(s.peak_by_category[at(Category::Gradients)], 2000u);
  allocator.deallocate(weights, Category::Weights);
  allocator.deallocate(gradients, Category::Gradients);
  EXPECT_EQ(allocator.statistics().current, 0u);
  allocator.release_cached();
}

TEST_F(AllocatorTest, ExhaustionFlushesRetriesAndThenExplains) {
  CachingAllocator allocator = make();
  world.capacity = 64 * kMiB;
  void* cached = allocator.allocate(40 * kMiB, kAny);
  allocator.deallocate(cached, kAny);
  void* weights = allocator.allocate(50 * kMiB, Category::Weights);  // only after the cache was given back
  try {
    (void)allocator.allocate(30 * kMiB, kAny);
    FAIL() << "64 MiB cannot hold 80";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("test has no room for 30.0 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("weights 50.0 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("smaller batch"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  void* fits = allocator.allocate(14 * kMiB, kAny);  // exactly what is left
  allocator.deallocate(fits, kAny);
  EXPECT_THROW((void)allocator.allocate(SIZE_MAX, kAny), Error);
  EXPECT_THROW((void)allocator.allocate(SIZE_MAX / 2 + 1, kAny), Error);
  EXPECT_EQ(allocator.statistics().current, 50 * kMiB);
  allocator.deallocate(weights, Category::Weights);
  allocator.release_cached();
}

TEST_F(AllocatorTest, LimitCapsWhatIsReservedAndServesWhatFits) {
  CachingAllocator allocator = make(64 * kMiB);
  void* most = allocator.allocate(64 * kMiB, kAny);
  EXPECT_THROW((void)allocator.allocate(1, kAny), Error);
  allocator.deallocate(most, kAny);
  std::vector<void*> blocks;  // of a size whose usual segments would waste: 12 x 5 MiB fit in 64
  for (int i = 0; i < 12; ++i) blocks.push_back(allocator.allocate(5 * kMiB, kAny));
  blocks.push_back(allocator.allocate(100, kAny));
  EXPECT_LE(allocator.statistics().reserved, 64 * kMiB);
  try {
    (void)allocator.allocate(5 * kMiB, kAny);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the limit is 64.0 MiB"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("DEMI_MEMORY_LIMIT"), std::string::npos) << error.what();
  }
  allocator.set_limit(0);
  blocks.push_back(allocator.allocate(5 * kMiB, kAny));
  for (void* memory : blocks) allocator.deallocate(memory, kAny);
  allocator.set_limit(kMiB);  // what is cached beyond goes back at once
  EXPECT_EQ(allocator.statistics().reserved, 0u);
  EXPECT_EQ(allocator.statistics().limit, kMiB);
}

TEST_F(AllocatorTest, CaptureNeedsAPool) {
  CachingAllocator allocator = make();
  void* before = allocator.allocate(100, kAny);
  world.capturing = true;
  EXPECT_THROW((void)allocator.allocate(100, kAny), Error);
  EXPECT_THROW(allocator.release_cached(), Error);
  world.capturing = false;
  allocator.deallocate(before, kAny);
  allocator.release_cached();
}

TEST(PrivatePool, KeepsItsMemoryApart) {
  const Device cpu;
  release_cached(cpu);
  const size_t reserved_before = statistics(cpu).reserved;
  constexpr size_t kBytes = 3 * kMiB;
  void* common = allocate(cpu, kBytes, kAny);
  void *kept = nullptr, *reused = nullptr;
  {
    PrivatePool pool(cpu);
    {
      const PrivatePool::Use use(pool);
      void* a = allocate(cpu, kBytes, kAny);
      deallocate(cpu, a, kAny);
      reused = allocate(cpu, kBytes, kAny);
      EXPECT_EQ(reused, a);
      deallocate(cpu, common, kAny);  // waits for the pool's end
      kept = allocate(cpu, kBytes, kAny);
      EXPECT_NE(kept, common);
    }
    deallocate(cpu, reused, kAny);
    std::vector<void*> outside;
    for (int i = 0; i < 20; ++i) outside.push_back(allocate(cpu, kBytes, kAny));
    for (void* memory : outside) {
      EXPECT_NE(memory, reused);
      EXPECT_NE(memory, common);
    }
    for (void* memory : outside) deallocate(cpu, memory, kAny);
    release_cached(cpu);
    EXPECT_GT(statistics(cpu).reserved, reserved_before);
  }
  std::memset(kept, 1, kBytes);  // outlives its pool
  deallocate(cpu, kept, kAny);
  release_cached(cpu);
  EXPECT_EQ(statistics(cpu).reserved, reserved_before);
}

TEST(PrivatePool, ServesTheUsingThreadOnly) {
  const Device cpu;
  PrivatePool pool(cpu);
  const PrivatePool::Use use(pool);
  void* mine = allocate(cpu, 100, kAny);
  deallocate(cpu, mine, kAny);
  std::thread([&] {
    void* other = allocate(cpu, 100, kAny);
    EXPECT_NE(other, mine);
    deallocate(cpu, other, kAny);
  }).join();
}

TEST(Memory, StorageIsCountedUnderTheScopesCategory) {
  const Device cpu;
  const auto weights = [&] { return statistics(cpu).by_category[static_cast<size_t>(Category::Weights)]; };
  const size_t before = weights();
  {
    Tensor t;
    {
      const Scope scope(Category::Weights);
      t = Tensor::empty(Shape{250}, DType::F32);
      {
        const Scope inner(Category::Data);
        EXPECT_EQ(current_category(), Category::Data);
      }
      EXPECT_EQ(current_category(), Category::Weights);
    }
    EXPECT_EQ(current_category(), Category::Activations);
    EXPECT_EQ(weights(), before + 1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 64, 0u);
    const std::string table = report(cpu);
    EXPECT_NE(table.find("weights"), std::string::npos);
    EXPECT_NE(table.find("optimizer state"), std::string::npos);
  }
  EXPECT_EQ(weights(), before);
}

TEST(Memory, ThreadsAllocateAndFreeEachOthersBlocks) {
  const Device cpu;
  const size_t before = statistics(cpu).current;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<Tensor> shared;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 500; ++i) {
        Tensor made = Tensor::zeros(Shape{1 + static_cast<int64_t>(random() % 100000)}, DType::U8);
        const std::lock_guard lock(mutex);
        shared.push_back(std::move(made));
        if (shared.size() > 20) shared.erase(shared.begin() + random() % 20);
      }
    });
  for (std::thread& thread : threads) thread.join();
  shared.clear();
  EXPECT_EQ(statistics(cpu).current, before);
}

TEST(Memory, SizesAreParsed) {
  EXPECT_EQ(parse_size("8GiB"), size_t{8} << 30);
  EXPECT_EQ(parse_size("512 MiB"), size_t{512} << 20);
  EXPECT_EQ(parse_size("3KiB"), 3072u);
  EXPECT_EQ(parse_size("1TiB"), size_t{1} << 40);
  EXPECT_EQ(parse_size("1000000"), 1000000u);
  EXPECT_EQ(parse_size("0"), 0u);
  for (const char* text : {"", " ", "GiB", "8 ", "-1", "+1", "1.5GiB", "8GB", "8gib", "8GiB ", "8  GiB",
                           "99999999999999999999", "99999999999TiB", "x"})
    EXPECT_THROW((void)parse_size(text), Error) << text;
}

TEST(Memory, LimitOfTheCpu) {
  const Device cpu;
  release_cached(cpu);
  set_limit(cpu, statistics(cpu).reserved + 8 * kMiB);
  EXPECT_THROW((void)Tensor::empty(Shape{16 << 20}, DType::U8), Error);
  EXPECT_NO_THROW((void)Tensor::empty(Shape{8 << 20}, DType::U8));
  set_limit(cpu, 0);
  EXPECT_NO_THROW((void)Tensor::empty(Shape{16 << 20}, DType::U8));
}

Tensor global_tensor;  // freed after main: the allocator is still there
TEST(Memory, GlobalsMayHoldTensors) { global_tensor = Tensor::zeros(Shape{1000}, DType::F32); }

}  // namespace
}  // namespace demi::memory
