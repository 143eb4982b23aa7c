// CIFAR-10 and CIFAR-100 in their official binary layout (https://www.cs.toronto.edu/~kriz/cifar.html). A record is one
// label byte (CIFAR-100: coarse, then fine), then 3,072 pixel bytes: the red, green and blue planes of 32x32,
// row-major.
//   CIFAR-10   data_batch_1.bin ... data_batch_5.bin and test_batch.bin, each 10,000 records of 3,073 bytes
//   CIFAR-100  train.bin with 50,000 and test.bin with 10,000 records of 3,074 bytes
#pragma once

#include <filesystem>
#include <string>

#include "demi/core/tensor.h"

namespace demi::data {

// One split in host memory.
struct Records {
  Tensor images;  // uint8 [M, 3, H, W]
  Tensor labels;  // int64 [M], each in [0, classes)

  int64_t size() const { return images.defined() ? images.size(0) : 0; }
};

struct Dataset {
  std::string name;  // "CIFAR-10"
  int classes = 0;
  Records train, test;
};

// `folder` holds cifar-10-batches-bin (or cifar-100-binary), or is that folder itself. Files are mapped, checked and
// copied once. Throws Error naming the file, its byte count and the right one for: a missing folder or file, a size
// that is not the official one, CIFAR-100 records given as CIFAR-10, a label out of range, a test file that equals a
// training file.
Dataset read_cifar10(const std::filesystem::path& folder);
Dataset read_cifar100(const std::filesystem::path& folder);  // the 100 fine labels

// Whichever of the two `folder` holds; CIFAR-10 where it holds both, or neither (the error then says what is missing).
Dataset read_cifar(const std::filesystem::path& folder);

}  // namespace demi::data
