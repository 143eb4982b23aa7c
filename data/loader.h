// From records to batches. The whole set lies on the device as bytes (CIFAR-10: 184 MB, put there once), and a batch is
// one kernel over it: gather, crop, flip, normalize, cast. Nothing in the loop waits for the device.
//
//   data::Cifar10 cifar("cifar-10-batches-bin");
//   for (const data::Batch& batch : cifar.train({.batch = 256, .augment = data::crop_and_flip}, device)) ...
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "demi/data/records.h"
#include "demi/data/synthetic.h"

namespace demi::data {

struct Batch {
  Tensor images;      // [N, H, W, 3] in the dtype asked for
  Tensor labels;      // int64 [N]
  int64_t count = 0;  // N
  int64_t index = 0;  // which batch of the epoch this is
};

// Random crop of the image padded with `pad` black pixels on each side, and a mirror image half of the time.
struct Augment {
  int pad = 0;
  bool flip = false;
};
inline constexpr Augment no_augment{}, flip_only{.pad = 0, .flip = true}, crop_and_flip{.pad = 4, .flip = true};

// (pixel / 255 - mean) / std_dev, by channel.
struct Normalization {
  std::array<float, 3> mean{0, 0, 0}, std_dev{1, 1, 1};
};
inline constexpr Normalization cifar_normalization{{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
inline constexpr Normalization half_normalization{{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}};  // to [-1, 1]

struct LoadOptions {
  int64_t batch = 128;
  Augment augment{};
  Normalization normalization = cifar_normalization;
  DType dtype = DType::F32;  // fp16 or bf16 saves the cast before the first convolution
  uint64_t seed = 0;
  std::optional<int64_t> epoch{};  // of the order and the augmentation; left out: one more than the last train() had
  bool drop_last = false;          // else the last, short batch is kept
  std::optional<bool> shuffle{};   // left out: train() does, test() does not
  int64_t start_batch = 0;         // the first batch to give, to resume in the middle of an epoch
};

// The batches of one epoch. What is in them depends on the records, the batch size, seed, epoch and index alone: not on
// the device, on where the loop starts, or on how often it is run.
class Batches {
 public:
  // images: uint8 [M, 3, H, W] on `device`; labels: int64 [M] on the host. options.epoch and options.shuffle left out
  // mean 0 and false. Throws Error for options that make no sense.
  Batches(Tensor images, const Tensor& labels, const LoadOptions& options, Device device);

  int64_t size() const { return count_; }  // batches of the whole epoch, those before start_batch included
  int64_t samples() const;                 // images in them
  Batch at(int64_t index) const;           // throws Error out of range

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    Iterator(const Batches* batches, int64_t index) : batches_(batches), index_(index) { load(); }
    const Batch& operator*() const { return batch_; }
    const Batch* operator->() const { return &batch_; }
    Iterator& operator++() {
      ++index_;
      load();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& i, std::default_sentinel_t) { return i.index_ >= i.batches_->size(); }

   private:
    void load() {
      batch_ = {};  // first: its memory serves the next one
      if (index_ < batches_->size()) batch_ = batches_->at(index_);
    }
    const Batches* batches_ = nullptr;
    int64_t index_ = 0;
    Batch batch_;
  };
  Iterator begin() const { return {this, options_.start_batch}; }
  std::default_sentinel_t end() const { return {}; }

 private:
  Tensor images_;          // the whole set
  Tensor order_, labels_;  // of this epoch: record numbers, and their labels
  LoadOptions options_;
  int64_t count_ = 0;
};

// The order of the records 0 ... size-1 in an epoch: a Fisher-Yates shuffle from Philox(seed, epoch).
std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch);

// A set to train on. Cheap to copy: copies share the records, also those on devices.
class Source {
 public:
  explicit Source(Dataset dataset) : dataset_(std::move(dataset)) {}

  const Dataset& dataset() const { return dataset_; }
  const std::string& name() const { return dataset_.name; }
  int classes() const { return dataset_.classes; }

  Batches train(LoadOptions options, Device device);  // shuffled anew in every call, unless told otherwise
  Batches test(LoadOptions options, Device device);   // in the files' order

 private:
  Tensor on_device(const Records& records, Device device);

  Dataset dataset_;
  std::vector<std::pair<const void*, Tensor>> placed_;  // the host images they came from, and the copy on a device
  int64_t next_epoch_ = 0;
};

// The errors are those of the readers in records.h.
struct Cifar10 : Source {
  explicit Cifar10(const std::filesystem::path& folder) : Source(read_cifar10(folder)) {}
};
struct Cifar100 : Source {
  explicit Cifar100(const std::filesystem::path& folder) : Source(read_cifar100(folder)) {}
};
struct Synthetic : Source {
  explicit Synthetic(const SyntheticOptions& options = {}) : Source(make_synthetic(options)) {}
};

// What a flag `--data DIR|synthetic|synthetic:N` means. synthetic:N is the built-in set with N training images (10 to a
// million) and a third as many to test on. Throws Error for another N, and those of the readers in records.h.
Source open(const std::string& what);

}  // namespace demi::data
