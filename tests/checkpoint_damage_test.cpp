// Checkpoints that were cut, changed, or written by a process that was killed: refused whole, or still the old one.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "demi/nn/safetensors.h"
#include "trained.h"

namespace demi::test {
namespace {

class Damage : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    const Trained::Kind kind{.adam = true, .dtype = DType::F16};
    good_ = std::make_unique<Trained>(device(), kind);
    mine_ = std::make_unique<Trained>(device(), kind);
    good_->steps(0, 2);
    good_->save(path_, {{"epoch", "1"}, {"flags", "[\"--lr=0.1\"]"}});
    bytes_ = read_file(path_);
    mine_->steps(20, 1);
    before_ = mine_->everything();
  }
  // The changed file must be refused, with one line that names it, and change nothing.
  void expect_refused(const std::string& file, const std::string& what) {
    write_file(path_, file);
    for (const bool notes : {false, true}) {
      const std::string error =
          error_of([&] { notes ? static_cast<void>(nn::read_notes(path_)) : static_cast<void>(mine_->load(path_)); });
      ASSERT_EQ(error.find(path_.string()), 0u) << what << ": " << error;
      ASSERT_EQ(error.find('\n'), std::string::npos) << what << ": " << error;
    }
  }

  const Folder folder_;
  const fs::path path_ = folder_ / "a.ckpt";
  std::unique_ptr<Trained> good_, mine_;
  std::string bytes_;
  std::map<std::string, std::string> before_;
};

DEMI_ON_ALL_DEVICES(Damage);

TEST_P(Damage, TruncatedAnywhere) {
  for (size_t i = 0; i < 100; ++i) {
    const size_t length = i < 20 ? i : i >= 95 ? bytes_.size() - (100 - i) : bytes_.size() * (i - 20) / 75;
    ASSERT_NO_FATAL_FAILURE(expect_refused(bytes_.substr(0, length), fmt::format("cut to {} bytes", length)));
  }
  expect_refused(bytes_ + '\0', "one byte too many");
  EXPECT_EQ(differences(mine_->everything(), before_), "");
}

TEST_P(Damage, OneByteFlippedAnywhere) {
  uint64_t header = 0;
  std::memcpy(&header, bytes_.data(), 8);
  const size_t data = 8 + header;
  for (size_t i = 0; i < 200; ++i) {  // the length, 112 places of the header, 80 of the data
    const size_t at = i < 8     ? i
                      : i < 120 ? 8 + header * (i - 8) / 112
                                : data + (bytes_.size() - data - 1) * (i - 120) / 79;
    std::string file = bytes_;
    file[at] = static_cast<char>(file[at] ^ (1 << (i % 8)));
    ASSERT_NO_FATAL_FAILURE(expect_refused(file, fmt::format("bit {} of byte {}", i % 8, at)));
  }
  EXPECT_EQ(differences(mine_->everything(), before_), "");
}

// The words that the checksum's own place depends on, every byte of them.
TEST_P(Damage, EveryByteAroundTheChecksum) {
  const size_t metadata = bytes_.find("__metadata__"), sum = bytes_.find("demi_checksum");
  ASSERT_LT(metadata, sum);  // side by side: the checksum is the first of the metadata
  ASSERT_LT(sum, metadata + 100);
  for (size_t at = metadata - 2; at < sum + 35; ++at) {
    std::string file = bytes_;
    file[at] = static_cast<char>(file[at] ^ 1);
    ASSERT_NO_FATAL_FAILURE(expect_refused(file, fmt::format("byte {}, '{}'", at, bytes_[at])));
  }
  EXPECT_EQ(differences(mine_->everything(), before_), "");
}

TEST_P(Damage, LeftoversOfAKilledWriteDoNoHarm) {
  write_file(path_.string() + ".partial", bytes_.substr(0, bytes_.size() / 2));
  EXPECT_EQ(mine_->load(path_).at("epoch"), "1");
  good_->steps(2, 1);
  good_->save(path_, {{"epoch", "2"}});
  EXPECT_EQ(mine_->load(path_).at("epoch"), "2");
  EXPECT_EQ(folder_.files(), 1u);
}

// A process that overwrites one checkpoint again and again is killed at any moment: what is there afterwards is whole.
TEST_P(Damage, KilledWhileOverwriting) {
  for (int round = 0; round < 12; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // only writes: a fork has no threads to compute with
      nn::Safetensors content = nn::read_safetensors(path_);
      content.tensors["more"] = Tensor::empty({1 << 18}, DType::U8);
      std::memset(content.tensors["more"].mutable_raw(), round, 1 << 18);
      for (bool first = true;; first = false) {
        nn::write_safetensors(path_, content);
        if (first && write(ready[1], "x", 1) != 1) _exit(1);
      }
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    usleep(static_cast<useconds_t>(300 + 1700 * round % 5000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    const nn::Safetensors content = nn::read_safetensors(path_);
    EXPECT_TRUE(content.checksummed);
    EXPECT_EQ(bytes_of(content.tensors.at("more")), std::string(1 << 18, static_cast<char>(round)));
  }
}

}  // namespace
}  // namespace demi::test
