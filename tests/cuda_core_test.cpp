// Core on a CUDA device: copies, contexts, the error word, memory and graphs. Skipped where there is none.
#if DEMI_CUDA
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "demi/core/backend.h"
#include "demi/core/cuda/context.h"
#include "demi/core/cuda/graph.h"
#include "demi/core/tensor.h"

namespace demi {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class CudaCore : public testing::Test {
 protected:
  void SetUp() override {
    if (backend::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    device = Device::cuda();
  }
  Tensor filled(float value, int64_t n = 1000) {
    return Tensor::from<float>(std::vector<float>(static_cast<size_t>(n), value), {n}, device);
  }
  Device device;
};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(CudaCore, CopiesOfAllSizesArrive) {
  for (const int64_t n : {int64_t{1}, int64_t{255}, int64_t{1} << 20, (int64_t{20} << 20) + 7}) {
    std::vector<uint8_t> host(static_cast<size_t>(n));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint8_t>(i * 31 + (i >> 16));
    Tensor there = Tensor::from<uint8_t>(host, {n}, device);
    EXPECT_EQ(there.clone().to_vector<uint8_t>(), host);
    if (n > 3) {
      EXPECT_EQ(there.narrow(3, n - 3).to_vector<uint8_t>(), std::vector<uint8_t>(host.begin() + 3, host.end()));
    }
    there.narrow(n / 2, n - n / 2).zero();
    std::fill(host.begin() + n / 2, host.end(), uint8_t{0});
    EXPECT_EQ(there.to(Device::cpu()).to_vector<uint8_t>(), host);
  }
  EXPECT_TRUE(Tensor::zeros(Shape{0}, DType::F32, device).to_vector<float>().empty());
}

TEST_F(CudaCore, SourceMayChangeOnceACopyReturns) {
  constexpr int64_t kCount = 5000;
  Tensor there = Tensor::zeros(Shape{kCount}, DType::I64, device);
  Tensor value = Tensor::zeros(Shape{1}, DType::I64);
  for (int64_t i = 0; i < kCount; ++i) {
    value.mutable_data<int64_t>()[0] = i;
    there.narrow(i, 1).copy_from(value);
  }
  const std::vector<int64_t> got = there.to_vector<int64_t>();
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], i);

  Tensor batch = Tensor::zeros(Shape{3 << 20}, DType::U8);  // several laps of the ring
  std::vector<Tensor> batches;
  for (int i = 0; i < 12; ++i) {
    std::memset(batch.mutable_raw(), i, batch.bytes());
    batches.push_back(batch.to(device));
  }
  for (int i = 0; i < 12; ++i)
    ASSERT_EQ(batches[static_cast<size_t>(i)].to_vector<uint8_t>(),
              std::vector<uint8_t>(3 << 20, static_cast<uint8_t>(i)));
}

TEST_F(CudaCore, HandlesBelongToTheThreadsStream) {
  cuda::Context& context = cuda::Context::get(device);
  EXPECT_EQ(&context, &cuda::Context::get(device));
  EXPECT_NE(context.stream(), nullptr);
  EXPECT_GT(context.multiprocessors(), 0);
  cudaStream_t bound = nullptr;
  EXPECT_EQ(cudnnGetStream(context.cudnn(), &bound), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(bound, context.stream());
  EXPECT_NE(context.cublaslt(), nullptr);
  void* scratch = context.workspace(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch) % 256, 0u);
  EXPECT_EQ(context.workspace(10), scratch);
  EXPECT_NE(context.workspace(5 * kMiB), nullptr);

  cudaStream_t of_first = nullptr, of_second = nullptr;
  std::thread([&] {
    of_first = cuda::Context::get(device).stream();
    EXPECT_EQ(filled(3).to_vector<float>()[999], 3.0f);
  }).join();
  std::thread([&] { of_second = cuda::Context::get(device).stream(); }).join();
  EXPECT_NE(of_first, context.stream());
  EXPECT_EQ(of_second, of_first);  // taken over from the thread that ended
}

TEST_F(CudaCore, ReportsOfKernelsAreThrownOnceAndCleared) {
  const auto report = [&](cuda::ErrorWord::Code code, int detail, int64_t index, int64_t value) {
    const cuda::ErrorWord word{code, detail, index, value, nullptr};  // all but the claim, which stays
    DEMI_CUDA_CHECK(cudaMemcpyAsync(cuda::error_word(device), &word, offsetof(cuda::ErrorWord, claimed),
                                    cudaMemcpyDefault, cuda::Context::get(device).stream()));
  };
  const Tensor t = filled(1);
  report(cuda::ErrorWord::LabelOutOfRange, 3, 1, 1000);
  EXPECT_EQ(message_of([&] { synchronize(device); }),
            "[cross_entropy] label 1000 of sample 1 is out of range: the classes are 0 to 2");
  EXPECT_NO_THROW(synchronize(device));
  report(cuda::ErrorWord::TooManyOverflows, 50, 1234, 0);
  const std::string text = message_of([&] { (void)t.to_vector<float>(); });
  EXPECT_NE(text.find("50 steps in a row"), std::string::npos) << text;
  EXPECT_NE(text.find("1234"), std::string::npos) << text;
  EXPECT_EQ(t.to_vector<float>()[0], 1.0f);
}

TEST_F(CudaCore, ErrorsOfTheRuntimeSayWhere) {
  const std::string text = message_of([] { DEMI_CUDA_CHECK(cudaSetDevice(12345)); });
  for (const char* part : {"cudaSetDevice(12345)", "cudaErrorInvalidDevice", "cuda_core_test.cpp:"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaCore, MemoryIsCountedAndExhaustionIsSurvived) {
  const size_t before = memory::statistics(device).current;
  {
    const memory::Scope scope(memory::Category::Gradients);
    const Tensor t = Tensor::empty(Shape{1000}, DType::F32, device);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 512, 0u);
    EXPECT_EQ(memory::statistics(device).current, before + 4000);
  }
  EXPECT_EQ(memory::statistics(device).current, before);

  const std::string text = message_of([&] { (void)Tensor::empty(Shape{int64_t{1} << 42}, DType::U8, device); });
  EXPECT_NE(text.find("cuda:0 has no room for 4096.00 GiB"), std::string::npos) << text;
  EXPECT_EQ(filled(2).to_vector<float>()[0], 2.0f);

  memory::release_cached(device);
  memory::set_limit(device, memory::statistics(device).reserved + 16 * kMiB);
  EXPECT_NO_THROW((void)Tensor::empty(Shape{16 << 20}, DType::U8, device));
  EXPECT_THROW((void)Tensor::empty(Shape{32 << 20}, DType::U8, device), Error);
  EXPECT_NO_THROW((void)Tensor::empty(Shape{12 << 20}, DType::U8, device));
  memory::set_limit(device, 0);
}

TEST_F(CudaCore, GraphReplaysOnNewInputs) {
  Tensor x = filled(1), y = filled(0);
  memory::release_cached(device);
  const size_t reserved = memory::statistics(device).reserved;
  int runs = 0;
  {
    cuda::Graph graph(
        [&] {
          ++runs;
          const Tensor between = x.clone();  // memory of the graph's own
          y.copy_from(between);
        },
        2);
    EXPECT_EQ(runs, 3);
    for (float value : {5.0f, 6.0f}) {
      x.copy_from(filled(value));
      std::vector<Tensor> others;
      for (int i = 0; i < 100; ++i) others.push_back(filled(static_cast<float>(i)));
      graph.replay();
      EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, value));
      for (int i = 0; i < 100; ++i)  // nobody else's memory was written
        ASSERT_EQ(others[static_cast<size_t>(i)].to_vector<float>(), std::vector<float>(1000, static_cast<float>(i)));
    }
    EXPECT_EQ(runs, 3);
    EXPECT_GT(memory::statistics(device).reserved, reserved);
  }
  memory::release_cached(device);
  EXPECT_EQ(memory::statistics(device).reserved, reserved);
}

TEST_F(CudaCore, GraphsWorkspaceIsItsOwn) {
  cuda::Context& context = cuda::Context::get(device);
  void* inside = nullptr;
  cuda::Graph graph([&] {
    inside = context.workspace(kMiB);
    DEMI_CUDA_CHECK(cudaMemsetAsync(inside, 1, kMiB, context.stream()));
  });
  void* outside = context.workspace(kMiB);
  EXPECT_NE(outside, inside);
  memory::release_cached(device);  // takes the thread's workspace, not the graph's
  EXPECT_NE(context.workspace(kMiB), inside);
  graph.replay();
  synchronize(device);
}

TEST_F(CudaCore, WhatNeedsTheHostIsRefusedInACapture) {
  Tensor x = filled(1), kept;
  const auto capture = [&](const std::function<void()>& step) {
    return message_of([&] {
      bool capturing = false;
      cuda::Graph graph(
          [&] {
            capturing = backend::capturing(device.index());
            kept = x.clone();
            if (capturing) step();
          },
          1);
    });
  };
  EXPECT_NE(capture([&] { synchronize(device); }).find("being captured"), std::string::npos);
  EXPECT_NE(capture([&] { (void)x.to_vector<float>(); }).find("being captured"), std::string::npos);
  EXPECT_NE(capture([&] { x.copy_from(Tensor::zeros(Shape{1000}, DType::F32)); }).find("being captured"),
            std::string::npos);
  EXPECT_NE(capture([&] { cuda::Graph nested([] {}); }).find("capture inside"), std::string::npos);
  EXPECT_EQ(capture([&] { fail("of the step's own"); }), "of the step's own");
  EXPECT_EQ(capture([] {}), "nothing was thrown");
  kept = {};
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 1.0f));
  EXPECT_FALSE(backend::capturing(device.index()));
  EXPECT_THROW(cuda::Graph([] {}, 1, Device::cpu()), Error);
}

TEST_F(CudaCore, DevicesAreDescribed) {
  const backend::DeviceInfo info = backend::device_info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.major, 7);
  EXPECT_GT(info.memory_bytes, kMiB);
  EXPECT_EQ(info.multiprocessors, cuda::Context::get(device).multiprocessors());
  EXPECT_GT(backend::free_memory(0), 0u);
  const backend::Versions v = backend::versions();
  for (const std::string& version : {v.driver, v.runtime, v.cudnn, v.cublas})
    EXPECT_NE(version.find('.'), std::string::npos);
  EXPECT_THROW((void)backend::device_info(backend::device_count()), Error);
}

TEST_F(CudaCore, SecondDevice) {
  if (backend::device_count() < 2) GTEST_SKIP() << "one device";
  const Device second = Device::cuda(1);
  std::vector<float> values(1 << 20);
  std::iota(values.begin(), values.end(), 0.0f);
  for (int i = 0; i < 3; ++i) {
    Tensor a = Tensor::from<float>(values, {1 << 20}, device);
    const Tensor b = a.to(second);
    a.zero();  // after the copy
    const Tensor c = b.to(device);
    EXPECT_EQ(b.to_vector<float>(), values);
    EXPECT_EQ(c.to_vector<float>(), values);
  }
  int current = -1;
  {
    const backend::DeviceScope scope(1);
    DEMI_CUDA_CHECK(cudaGetDevice(&current));
    EXPECT_EQ(current, 1);
  }
  DEMI_CUDA_CHECK(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
}

Tensor global_tensor;  // freed after main, when the runtime may be gone
TEST_F(CudaCore, GlobalsMayHoldTensors) { global_tensor = filled(1); }

}  // namespace
}  // namespace demi
#endif
