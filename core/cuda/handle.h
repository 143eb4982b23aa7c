// Handle<T, Destroy>: the one owner of a stream, event, graph or library handle.
#pragma once

#include <utility>

namespace demi::cuda {

template <typename T, auto Destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T raw) : raw_(raw) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, T{});
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  T get() const { return raw_; }
  explicit operator bool() const { return raw_ != T{}; }
  T* out() {  // where a create function writes; what was held is destroyed first
    reset();
    return &raw_;
  }
  void reset() noexcept {
    if (raw_ != T{}) (void)Destroy(raw_);  // a destructor never throws; at exit the runtime may already be gone
    raw_ = T{};
  }

 private:
  T raw_{};
};

}  // namespace demi::cuda
