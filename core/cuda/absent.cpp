// core/backend.h in a build without CUDA: there are no devices, so nothing but the questions can be reached.
#include "demi/core/backend.h"
#include "demi/core/error.h"

namespace demi::backend {
namespace {
[[noreturn]] void fail_absent() { fail("demi was built without CUDA: use the device cpu"); }
}  // namespace

int device_count() { return 0; }
void* allocate(int, size_t) { return nullptr; }
void release(int, void*) noexcept {}
void* current_stream(int) { return nullptr; }
void synchronize(int) {}
bool capturing(int) { return false; }
bool capturing_graph() { return false; }
void around_replays(const void*, std::function<void()>, std::function<void()>) {}
void release_workspace(int) {}
size_t free_memory(int) { return 0; }

DeviceScope::DeviceScope(int device) {
  if (device >= 0) fail_absent();
}
DeviceScope::~DeviceScope() { (void)before_; }

void copy_to_device(int, void*, const void*, size_t) { fail_absent(); }
void copy_to_host(int, void*, const void*, size_t) { fail_absent(); }
void copy_on_device(int, void*, const void*, size_t) { fail_absent(); }
void copy_between_devices(int, void*, int, const void*, size_t) { fail_absent(); }
void fill_zero(int, void*, size_t) { fail_absent(); }

DeviceInfo device_info(int) { fail_absent(); }
Versions versions() { return {.driver = {}, .runtime = {}, .cudnn = {}, .cublas = {}, .built_with = "no CUDA"}; }

}  // namespace demi::backend
