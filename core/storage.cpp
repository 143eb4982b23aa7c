#include "demi/core/storage.h"

namespace demi {

Storage::Storage(size_t bytes, Device device, memory::Category category)
    : bytes_(bytes), device_(device), category_(category) {
  if (bytes_ > 0) data_ = memory::allocate(device_, bytes_, category_);
}

Storage::~Storage() {
  if (data_) memory::deallocate(device_, data_, category_);
}

}  // namespace demi
