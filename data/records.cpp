#include "demi/data/records.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/memory.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kPixels = 3 * kSide * kSide;

// How one of the two sets lies on disk.
struct Layout {
  const char* name;
  const char* folder;
  std::vector<const char*> train;
  const char* test;
  int64_t label_bytes;                  // the label that counts is the last of them
  int64_t train_records, test_records;  // a file
  int classes;

  int64_t record() const { return label_bytes + kPixels; }
};

const Layout& cifar10() {
  static const Layout layout{
      "CIFAR-10",
      "cifar-10-batches-bin",
      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      "test_batch.bin",
      1,
      10000,
      10000,
      10};
  return layout;
}

const Layout& cifar100() {
  static const Layout layout{"CIFAR-100", "cifar-100-binary", {"train.bin"}, "test.bin", 2, 50000, 10000, 100};
  return layout;
}

// A file mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(fs::path path) : path_(std::move(path)) {
    const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail("{}: {}", path_.string(), std::strerror(errno));
    struct stat status {};
    const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    if (regular && status.st_size > 0) {
      size_ = status.st_size;
      void* map = mmap(nullptr, bytes(), PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (map != MAP_FAILED) data_ = static_cast<const uint8_t*>(map);
    }
    const int reason = errno;
    close(descriptor);
    if (!regular) fail("{}: is not a regular file", path_.string());
    if (size_ > 0 && data_ == nullptr) fail("{}: cannot be mapped: {}", path_.string(), std::strerror(reason));
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), bytes());
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;

  const fs::path& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  bool same_content(const MappedFile& other) const {
    return size_ == other.size_ && std::memcmp(data_, other.data_, bytes()) == 0;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(size_); }
  fs::path path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

// What a size that is not the right one points to.
const char* size_hint(const Layout& layout, int64_t size) {
  const Layout& other = layout.classes == 10 ? cifar100() : cifar10();
  if (size == 0) return "; it is empty";
  if (size % other.record() == 0)
    return layout.classes == 10 ? "; it looks like CIFAR-100 (records of 3074 bytes)"
                                : "; it looks like CIFAR-10 (records of 3073 bytes)";
  return size % layout.record() == 0 ? "" : "; it is damaged or was not downloaded whole";
}

MappedFile open_checked(const Layout& layout, const fs::path& folder, const char* file, int64_t records) {
  const fs::path path = folder / file;
  std::error_code ignored;
  DEMI_CHECK(fs::exists(path, ignored), "{}: missing; {} needs it, of {} = {}*{} bytes", path.string(), layout.name,
             records * layout.record(), records, layout.record());
  MappedFile mapped(path);
  DEMI_CHECK(mapped.size() == records * layout.record(), "{}: {} bytes, expected {} = {}*{} for {}{}", path.string(),
             mapped.size(), records * layout.record(), records, layout.record(), layout.name,
             size_hint(layout, mapped.size()));
  return mapped;
}

// Copies the records of `file` to rows [first, ...) of `out` and checks each label.
void unpack(const Layout& layout, const MappedFile& file, int64_t first, Records& out) {
  const int64_t count = file.size() / layout.record();
  uint8_t* images = out.images.mutable_data<uint8_t>() + first * kPixels;
  int64_t* labels = out.labels.mutable_data<int64_t>() + first;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* record = file.data() + i * layout.record();
    const int label = record[layout.label_bytes - 1];
    DEMI_CHECK(label < layout.classes, "{}: record {} has label {}, {}'s labels are 0 to {}", file.path().string(), i,
               label, layout.name, layout.classes - 1);
    labels[i] = label;
    std::memcpy(images + i * kPixels, record + layout.label_bytes, static_cast<size_t>(kPixels));
  }
}

Records make_records(int64_t count) {
  const memory::Scope scope(memory::Category::Data);
  return {Tensor::empty({count, 3, kSide, kSide}, DType::U8), Tensor::empty({count}, DType::I64)};
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The folder with the files: `given`/cifar-..., else `given`.
fs::path find_folder(const Layout& layout, const fs::path& given) {
  std::error_code ignored;
  DEMI_CHECK(fs::exists(given, ignored), "{}: no such folder; it should hold {}/ of the binary version of {}",
             given.string(), layout.folder, layout.name);
  DEMI_CHECK(is_folder(given), "{}: is not a folder; it should be one that holds {}/ of the binary version of {}",
             given.string(), layout.folder, layout.name);
  return is_folder(given / layout.folder) ? given / layout.folder : given;
}

bool holds_any_file(const Layout& layout, const fs::path& folder) {
  std::error_code ignored;
  for (const char* file : layout.train)
    if (fs::exists(folder / file, ignored)) return true;
  return fs::exists(folder / layout.test, ignored);
}

// Whether `given` is or holds the set's folder, complete or not.
bool holds(const Layout& layout, const fs::path& given) {
  return is_folder(given / layout.folder) || holds_any_file(layout, given);
}

Dataset read(const Layout& layout, const fs::path& given) {
  const fs::path folder = find_folder(layout, given);
  const Layout& other = layout.classes == 10 ? cifar100() : cifar10();
  DEMI_CHECK(holds_any_file(layout, folder) || !holds(other, given), "{}: looks like {}, not {}", given.string(),
             other.name, layout.name);
  DEMI_CHECK(holds_any_file(layout, folder), "{}: holds neither {}/ nor {} of the binary version of {}", given.string(),
             layout.folder, layout.train[0], layout.name);

  std::vector<MappedFile> train;
  for (const char* file : layout.train) train.push_back(open_checked(layout, folder, file, layout.train_records));
  const MappedFile test = open_checked(layout, folder, layout.test, layout.test_records);
  for (const MappedFile& file : train)
    DEMI_CHECK(!test.same_content(file), "{} and {} ({} bytes) are the same: the test set must not be trained on",
               test.path().string(), file.path().string(), test.size());

  const auto files = static_cast<int64_t>(train.size());
  Dataset set{layout.name, layout.classes, make_records(files * layout.train_records),
              make_records(layout.test_records)};
  for (int64_t i = 0; i < files; ++i)
    unpack(layout, train[static_cast<size_t>(i)], i * layout.train_records, set.train);
  unpack(layout, test, 0, set.test);
  return set;
}

}  // namespace

Dataset read_cifar10(const fs::path& folder) { return read(cifar10(), folder); }
Dataset read_cifar100(const fs::path& folder) { return read(cifar100(), folder); }

Dataset read_cifar(const fs::path& folder) {
  return read(holds(cifar100(), folder) && !holds(cifar10(), folder) ? cifar100() : cifar10(), folder);
}

}  // namespace demi::data
