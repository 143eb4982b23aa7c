// Storage: a run of bytes on one device, shared by the tensors that view it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "demi/core/memory.h"

namespace demi {

class Storage {
 public:
  Storage(size_t bytes, Device device, memory::Category category = memory::current_category());
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }  // nullptr when bytes() is 0
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  memory::Category category() const { return category_; }

  // Counts the writes that went through Tensor::mutable_data(); what was derived from the bytes (a 16-bit copy of
  // weights, say) compares versions to know whether it is stale.
  uint64_t version() const { return version_; }
  void raise_version() { ++version_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
  Device device_;
  memory::Category category_;
  uint64_t version_ = 0;
};

}  // namespace demi
