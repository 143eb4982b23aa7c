#include "demi/data/loader.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "demi/core/memory.h"
#include "demi/core/random.h"
#include "demi/kernels/augment.h"

namespace demi::data {

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  DEMI_CHECK(size >= 0 && size < (int64_t{1} << 32), "[loader] cannot shuffle {} records", size);
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  const uint64_t key = mix(seed, 1);  // not the augmentation's
  for (int64_t i = size - 1; i > 0; --i) {
    const Philox random(key, static_cast<uint64_t>(epoch), static_cast<uint64_t>(i) / 4);
    const uint64_t j = uint64_t{random.word[i % 4]} * static_cast<uint64_t>(i + 1) >> 32;  // in [0, i]
    std::swap(order[static_cast<size_t>(i)], order[j]);
  }
  return order;
}

Batches::Batches(Tensor images, const Tensor& labels, const LoadOptions& options, Device device)
    : images_(std::move(images)), options_(options) {
  const int64_t size = labels.numel();
  DEMI_CHECK(images_.rank() == 4 && images_.dtype() == DType::U8 && images_.size(0) == size,
             "[loader] {} labels do not fit {} images of shape {}", size, images_.dtype(), images_.shape());
  DEMI_CHECK(images_.device() == device, "[loader] the images are on {}, the batches asked for on {}", images_.device(),
             device);
  DEMI_CHECK(options.batch >= 1, "[loader] the batch size must be at least 1, not {}", options.batch);
  DEMI_CHECK(options.augment.pad >= 0, "[loader] cannot pad by {} pixels", options.augment.pad);
  DEMI_CHECK(options.dtype == DType::F32 || is_16bit(options.dtype), "[loader] makes fp32, fp16 or bf16, not {}",
             options.dtype);
  for (const float s : options.normalization.std_dev)
    DEMI_CHECK(s > 0, "[loader] a standard deviation must be positive, not {}", s);
  count_ = options.drop_last ? size / options.batch : (size + options.batch - 1) / options.batch;
  DEMI_CHECK(options.start_batch >= 0 && options.start_batch <= count_,
             "[loader] cannot start at batch {} of an epoch of {}", options.start_batch, count_);

  const memory::Scope scope(memory::Category::Data);
  std::vector<int64_t> order;
  if (options.shuffle.value_or(false)) {
    order = epoch_order(size, options.seed, options.epoch.value_or(0));
  } else {
    order.resize(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), int64_t{0});
  }
  std::vector<int64_t> ordered_labels(order.size());
  const int64_t* label = labels.data<int64_t>();
  std::transform(order.begin(), order.end(), ordered_labels.begin(), [&](int64_t record) { return label[record]; });
  order_ = Tensor::from(order, {size}, device);
  labels_ = Tensor::from(ordered_labels, {size}, device);
}

int64_t Batches::samples() const { return std::min(count_ * options_.batch, order_.numel()); }

Batch Batches::at(int64_t index) const {
  DEMI_CHECK(index >= 0 && index < count_, "[loader] no batch {} in an epoch of {}", index, count_);
  const int64_t first = index * options_.batch, count = std::min(options_.batch, order_.numel() - first);
  const kernels::AugmentOptions augment{.layout = kernels::RecordLayout::CHW,
                                        .pad = options_.augment.pad,
                                        .flip = options_.augment.flip,
                                        .mean = options_.normalization.mean,
                                        .std_dev = options_.normalization.std_dev,
                                        .seed = options_.seed,
                                        .epoch = static_cast<uint64_t>(options_.epoch.value_or(0))};
  const memory::Scope scope(memory::Category::Data);
  return {kernels::augment(images_, order_.narrow(first, count), augment, options_.dtype), labels_.narrow(first, count),
          count, index};
}

Batches Source::train(LoadOptions options, Device device) {
  if (!options.epoch) options.epoch = next_epoch_;
  if (!options.shuffle) options.shuffle = true;
  next_epoch_ = *options.epoch + 1;
  return {on_device(dataset_.train, device), dataset_.train.labels, options, device};
}

Batches Source::test(LoadOptions options, Device device) {
  return {on_device(dataset_.test, device), dataset_.test.labels, options, device};
}

Tensor Source::on_device(const Records& records, Device device) {
  if (records.images.device() == device) return records.images;
  for (const auto& [host, copy] : placed_)
    if (host == records.images.raw() && copy.device() == device) return copy;
  const memory::Scope scope(memory::Category::Data);
  placed_.emplace_back(records.images.raw(), records.images.to(device));
  return placed_.back().second;
}

Source open(const std::string& what) {
  if (what == "synthetic") return Source(make_synthetic());
  const std::string_view prefix = "synthetic:";
  if (!what.starts_with(prefix)) return Source(read_cifar(what));
  int64_t train = 0;
  const char* end = what.data() + what.size();
  const auto [stop, error] = std::from_chars(what.data() + prefix.size(), end, train);
  DEMI_CHECK(error == std::errc{} && stop == end && train >= 10 && train <= 1'000'000,
             "'{}': the built-in set has 10 to 1000000 training images, synthetic:6000 for example", what);
  const SyntheticOptions standard;
  return Source(
      make_synthetic({.train = train, .test = std::max<int64_t>(train * standard.test / standard.train, 10)}));
}

}  // namespace demi::data
