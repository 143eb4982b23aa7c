// The CIFAR reader: what it gives for good files, and one clear line for each kind of bad ones.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include <string>
#include <vector>

#include "demi/core/random.h"
#include "demi/data/records.h"

namespace demi {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<char>;

void write_file(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

uint8_t pixel(uint64_t file, int64_t record, int64_t i) {
  return static_cast<uint8_t>(mix(file, static_cast<uint64_t>(record)) + static_cast<uint64_t>(i * 7));
}

// `count` records of label_bytes + 3072 bytes; labels run through 0 ... classes-1.
Bytes make_records(uint64_t file, int64_t count, int64_t label_bytes, int classes) {
  Bytes bytes;
  bytes.reserve(static_cast<size_t>(count * (label_bytes + 3072)));
  for (int64_t r = 0; r < count; ++r) {
    if (label_bytes == 2) bytes.push_back(static_cast<char>(r % 20));
    bytes.push_back(static_cast<char>(r % classes));
    const uint8_t first = pixel(file, r, 0);
    for (int i = 0; i < 3072; ++i) bytes.push_back(static_cast<char>(first + i * 7));
  }
  return bytes;
}

// A folder that holds a good cifar-10-batches-bin, made once; the tests damage links to its files, never the files.
const fs::path& good_folder() {
  static const struct Folder {
    fs::path path = fs::temp_directory_path() / fmt::format("demi_records_{}", static_cast<const void*>(this));
    Folder() {
      path += std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
      fs::create_directories(path / "cifar-10-batches-bin");
      for (uint64_t i = 1; i <= 5; ++i)
        write_file(path / "cifar-10-batches-bin" / fmt::format("data_batch_{}.bin", i), make_records(i, 10000, 1, 10));
      write_file(path / "cifar-10-batches-bin/test_batch.bin", make_records(6, 10000, 1, 10));
    }
    ~Folder() { fs::remove_all(path); }
  } folder;
  return folder.path;
}

class CifarFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = good_folder() / info->name();
    batches_ = folder_ / "cifar-10-batches-bin";
    fs::create_directories(batches_);
    for (const auto& file : fs::directory_iterator(good_folder() / "cifar-10-batches-bin"))
      fs::create_symlink(file.path(), batches_ / file.path().filename());
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Replaces a file by a changed copy.
  void change(const char* name, const std::function<void(Bytes&)>& edit) {
    std::ifstream in(batches_ / name, std::ios::binary);
    Bytes bytes{std::istreambuf_iterator<char>(in), {}};
    edit(bytes);
    fs::remove(batches_ / name);
    write_file(batches_ / name, bytes);
  }

  // Reading `path` must fail with one line that has all of `parts`.
  static void expect_error(const std::function<void()>& read, const std::vector<std::string>& parts) {
    try {
      read();
      FAIL() << "no error";
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.find('\n'), std::string::npos);
      for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  void expect_error10(const std::vector<std::string>& parts) {
    expect_error([&] { data::read_cifar10(folder_); }, parts);
    expect_error([&] { data::read_cifar(folder_); }, parts);
  }

  fs::path folder_, batches_;
};

TEST_F(CifarFiles, GoodFilesGiveEveryRecord) {
  for (const fs::path& given : {folder_, batches_}) {
    const data::Dataset set = data::read_cifar10(given);
    EXPECT_EQ(set.name, "CIFAR-10");
    EXPECT_EQ(set.classes, 10);
    EXPECT_EQ(set.train.images.shape(), (Shape{50000, 3, 32, 32}));
    EXPECT_EQ(set.test.images.shape(), (Shape{10000, 3, 32, 32}));
    EXPECT_EQ(set.train.labels.shape(), (Shape{50000}));
    std::vector<int> count(10);
    for (int64_t i = 0; i < 50000; ++i) ++count[static_cast<size_t>(set.train.labels.data<int64_t>()[i])];
    EXPECT_EQ(count, std::vector<int>(10, 5000));
    for (const int64_t r : {0, 9999, 10000, 34567, 49999})
      for (const int64_t i : {0, 1, 1023, 1024, 2048, 3071})
        EXPECT_EQ(set.train.images.data<uint8_t>()[r * 3072 + i],
                  pixel(static_cast<uint64_t>(r / 10000 + 1), r % 10000, i));
    EXPECT_EQ(set.test.images.data<uint8_t>()[9999 * 3072 + 3071], pixel(6, 9999, 3071));
  }
}

TEST_F(CifarFiles, MissingFolder) {
  const fs::path missing = folder_ / "nowhere";
  expect_error([&] { data::read_cifar10(missing); }, {missing.string(), "no such folder"});
  expect_error([&] { data::read_cifar(missing); }, {missing.string(), "no such folder"});
  const fs::path file = batches_ / "test_batch.bin";
  expect_error([&] { data::read_cifar10(file); }, {file.string(), "is not a folder"});
  fs::create_directories(folder_ / "empty");
  expect_error([&] { data::read_cifar10(folder_ / "empty"); }, {"empty", "cifar-10-batches-bin", "data_batch_1.bin"});
}

TEST_F(CifarFiles, MissingBatch) {
  fs::remove(batches_ / "data_batch_3.bin");
  expect_error10({"data_batch_3.bin", "missing", "30730000 = 10000*3073"});
}

TEST_F(CifarFiles, MissingTestBatch) {
  fs::remove(batches_ / "test_batch.bin");
  expect_error10({"test_batch.bin", "missing", "30730000 = 10000*3073"});
}

TEST_F(CifarFiles, CutByOneByte) {
  change("data_batch_1.bin", [](Bytes& b) { b.pop_back(); });
  expect_error10({(batches_ / "data_batch_1.bin").string(), "30729999 bytes", "30730000 = 10000*3073"});
}

TEST_F(CifarFiles, OneByteTooMany) {
  change("data_batch_5.bin", [](Bytes& b) { b.push_back(0); });
  expect_error10({"data_batch_5.bin", "30730001 bytes", "30730000 = 10000*3073"});
}

TEST_F(CifarFiles, CutToOneThousandBytes) {
  change("data_batch_1.bin", [](Bytes& b) { b.resize(1000); });
  expect_error10({"data_batch_1.bin", "1000 bytes", "30730000 = 10000*3073"});
}

TEST_F(CifarFiles, Empty) {
  change("data_batch_1.bin", [](Bytes& b) { b.clear(); });
  expect_error10({"data_batch_1.bin", "0 bytes", "30730000 = 10000*3073", "empty"});
}

TEST_F(CifarFiles, FewerRecords) {
  change("test_batch.bin", [](Bytes& b) { b.resize(9999 * 3073); });
  expect_error10({"test_batch.bin", "30726927 bytes", "30730000 = 10000*3073"});
}

TEST_F(CifarFiles, Cifar100Records) {
  change("data_batch_2.bin", [](Bytes& b) { b = make_records(2, 10000, 2, 100); });
  expect_error10({"data_batch_2.bin", "30740000 bytes", "30730000 = 10000*3073", "looks like CIFAR-100"});
}

TEST_F(CifarFiles, LabelOutOfRange) {
  change("data_batch_4.bin", [](Bytes& b) { b[1234 * 3073] = 10; });
  expect_error10({"data_batch_4.bin", "record 1234", "label 10", "0 to 9"});
  change("data_batch_4.bin", [](Bytes& b) { b[1234 * 3073] = static_cast<char>(255); });
  expect_error10({"data_batch_4.bin", "record 1234", "label 255"});
}

TEST_F(CifarFiles, TestFileEqualToATrainingFile) {
  fs::remove(batches_ / "test_batch.bin");
  fs::create_symlink(fs::read_symlink(batches_ / "data_batch_2.bin"), batches_ / "test_batch.bin");
  expect_error10({"test_batch.bin", "data_batch_2.bin", "are the same", "30730000"});
}

TEST_F(CifarFiles, FolderInPlaceOfAFile) {
  fs::remove(batches_ / "data_batch_1.bin");
  fs::create_directory(batches_ / "data_batch_1.bin");
  expect_error10({"data_batch_1.bin", "not a regular file"});
}

TEST_F(CifarFiles, Cifar100) {
  const fs::path hundred = folder_ / "hundred", files = hundred / "cifar-100-binary";
  fs::create_directories(files);
  write_file(files / "train.bin", make_records(7, 50000, 2, 100));
  write_file(files / "test.bin", make_records(8, 10000, 2, 100));
  for (const data::Dataset& set : {data::read_cifar100(hundred), data::read_cifar(files)}) {
    EXPECT_EQ(set.name, "CIFAR-100");
    EXPECT_EQ(set.classes, 100);
    EXPECT_EQ(set.train.size(), 50000);
    EXPECT_EQ(set.test.size(), 10000);
    EXPECT_EQ(set.train.labels.data<int64_t>()[199], 99);  // fine, not coarse
    EXPECT_EQ(set.train.images.data<uint8_t>()[49999 * 3072 + 3071], pixel(7, 49999, 3071));
  }
  expect_error([&] { data::read_cifar10(hundred); }, {hundred.string(), "looks like CIFAR-100"});
  expect_error([&] { data::read_cifar10(files); }, {files.string(), "looks like CIFAR-100"});
  expect_error([&] { data::read_cifar100(folder_ / "cifar-10-batches-bin"); }, {"looks like CIFAR-10"});
  fs::resize_file(files / "train.bin", 153699999);
  expect_error([&] { data::read_cifar100(hundred); }, {"train.bin", "153699999 bytes", "153700000 = 50000*3074"});
}

}  // namespace
}  // namespace demi
