// What demi finds on this machine: devices, versions, and the precisions that run on tensor cores.
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <vector>

#include "demi/core/backend.h"
#include "demi/core/device.h"
#include "demi/core/parallel.h"
#include "demi/core/processor.h"

namespace {

std::string compiled_vectors() {
  std::string names;
#if defined(__AVX512F__)
  names += " AVX-512";
#elif defined(__AVX2__)
  names += " AVX2";
#elif defined(__AVX__)
  names += " AVX";
#elif defined(__SSE2__)
  names += " SSE2";
#elif defined(__ARM_NEON)
  names += " NEON";
#endif
#if defined(__FMA__)
  names += " FMA";
#endif
#if defined(__F16C__)
  names += " F16C";
#endif
  return names.empty() ? " none" : names;
}

std::string tensor_core_precisions(const demi::backend::DeviceInfo& info) {
  if (info.major < 7) return "none";
  return info.major < 8 ? "fp16" : "fp16, bf16, tf32";
}

std::string or_none(const std::string& version) { return version.empty() ? "none" : version; }

}  // namespace

int main() try {
  using namespace demi;
  const backend::Versions v = backend::versions();
  fmt::print("built with   {}\n", v.built_with);
  fmt::print("CUDA driver  {}\n", or_none(v.driver));
  fmt::print("CUDA runtime {}\n", or_none(v.runtime));
  fmt::print("cuDNN        {}\n", or_none(v.cudnn));
  fmt::print("cuBLAS       {}\n", or_none(v.cublas));
  fmt::print("cpu          {}; {} threads; compiled for{}\n", processor_name(), num_threads(), compiled_vectors());
  const int devices = backend::device_count();
  for (int i = 0; i < devices; ++i) {
    const backend::DeviceInfo info = backend::device_info(i);
    fmt::print("cuda:{}       {}; compute capability {}.{}; {} multiprocessors; {:.1f} GiB; L2 {:.0f} MiB\n", i,
               info.name, info.major, info.minor, info.multiprocessors,
               static_cast<double>(info.memory_bytes) / (1 << 30), static_cast<double>(info.l2_bytes) / (1 << 20));
    fmt::print("             on tensor cores: {}\n", tensor_core_precisions(info));
  }
  if (devices == 0) fmt::print("cuda         no device\n");
  fmt::print("auto means   {}\n", Device::best());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "demi_info: {}\n", error.what());
  return 1;
}
