// Safetensors files and checkpoints: what is saved comes back bit for bit, a resumed training goes on as the
// uninterrupted one, and no damaged, foreign or half-written file gets past the reader.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/core/memory.h"
#include "demi/kernels/random.h"
#include "demi/nn/checkpoint.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/layers/batch_norm.h"
#include "demi/nn/layers/conv2d.h"
#include "demi/nn/layers/linear.h"
#include "demi/nn/layers/simple.h"
#include "demi/nn/resnet.h"
#include "demi/nn/safetensors.h"
#include "demi/optim/adam.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {
namespace {

namespace fs = std::filesystem;

// A folder that is gone after the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "demi_checkpoint_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path_), {})); }

 private:
  fs::path path_;
};

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string bytes_of(const Tensor& t) {
  const Tensor host = t.to(Device::cpu());
  return t.numel() == 0 ? "" : std::string(static_cast<const char*>(host.raw()), host.bytes());
}

// A safetensors file made by hand: the header's text, then the data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

void expect_same(const nn::Safetensors& a, const nn::Safetensors& b) {
  EXPECT_EQ(a.metadata, b.metadata);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, t] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(name)) << name;
    const Tensor& other = b.tensors.at(name);
    EXPECT_EQ(t.dtype(), other.dtype()) << name;
    EXPECT_EQ(t.shape(), other.shape()) << name;
    EXPECT_TRUE(bytes_of(t) == bytes_of(other)) << name;
  }
}

TEST(Safetensors, KeepsEveryDtypeAndShapeBitForBit) {
  nn::Safetensors content;
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8}) {
    const std::string name(name_of(dtype));
    Tensor t = Tensor::empty({3, 5}, dtype);  // 15 elements: odd ends of one byte and two
    for (size_t i = 0; i < t.bytes(); ++i) static_cast<char*>(t.mutable_raw())[i] = static_cast<char>(i * 37 + 200);
    content.tensors[name] = t;
    content.tensors[name + " view"] = t.narrow(1, 1);
    content.tensors[name + " empty"] = Tensor::empty({5, 0, 7}, dtype);
    content.tensors[name + " scalar"] = t.flatten().narrow(4, 1).reshape(Shape{});
  }
  content.metadata = {{"text", "quote \" backslash \\ newline \n umlaut \xc3\xa4"}, {"", ""}};
  const Folder folder;
  nn::write_safetensors(folder / "a", content);
  const nn::Safetensors back = nn::read_safetensors(folder / "a");
  EXPECT_TRUE(back.checksummed);
  expect_same(content, back);
  nn::write_safetensors(folder / "b", {});
  expect_same({}, nn::read_safetensors(folder / "b"));
  EXPECT_EQ(folder.files(), 2u);
}

TEST(Safetensors, OnlyEmptyTensors) {
  const Folder folder;
  nn::Safetensors content;
  content.tensors["a"] = Tensor::empty({1000, 0}, DType::F64);
  content.tensors["b"] = Tensor::empty({0}, DType::U8);
  nn::write_safetensors(folder / "a", content);
  expect_same(content, nn::read_safetensors(folder / "a"));
}

TEST(Safetensors, TextThatIsNoUtf8DoesNotPreventWriting) {
  const Folder folder;
  nn::write_safetensors(folder / "a", {{}, {{"path", "caf\xe9"}}, false});
  EXPECT_EQ(nn::read_safetensors(folder / "a").metadata.at("path"), "caf\xef\xbf\xbd");
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const nn::Safetensors file = nn::read_safetensors(fs::path(DEMI_SOURCE_DIR) / "tests/golden/op_cases.safetensors");
  EXPECT_FALSE(file.checksummed);
  EXPECT_GT(file.tensors.size(), 100u);
  for (const auto& [name, t] : file.tensors) EXPECT_TRUE(t.defined()) << name;
}

TEST(Safetensors, ReadsSpacesAnyOrderAndNoMetadata) {
  const Folder folder;
  const std::string header =
      R"( { "b" : {"shape": [2], "data_offsets": [4, 8], "dtype": "F16"}, "a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]} }   )";
  write_file(folder / "a", file_of(header, std::string("\x01\x02\x03\x04\x00\x3c\x00\xc0", 8)));
  const nn::Safetensors file = nn::read_safetensors(folder / "a");
  EXPECT_EQ(values_of(file.tensors.at("a")), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(values_of(file.tensors.at("b")), (std::vector<double>{1, -2}));
}

// Headers that promise what the file does not hold. None may allocate more than the file is long.
TEST(Safetensors, RefusesHeadersThatDoNotFit) {
  const Folder folder;
  const fs::path path = folder / "a";
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::vector<std::pair<std::string, std::string>> bad{
      {tensor("F32", "[4]", "[0,16]"), "reaches to byte 16 of 8"},
      {tensor("F32", "[4]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[1]", "[0,8]"), "room for 8"},
      {tensor("F32", "[2]", "[8,0]"), "byte 0"},
      {tensor("F32", "[-2]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[4611686018427387904]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[4294967296,4294967296]", "[0,8]"), "impossible shape"},
      {tensor("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), "impossible shape"},
      {tensor("F32", "[2]", "[18446744073709551608,18446744073709551615]"), "reaches to byte"},
      {tensor("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "9 axes"},
      {tensor("F8_E4M3", "[8]", "[0,8]"), "F8_E4M3"},
      {R"({"w":{"dtype":"F32","shape":[2]}})", "data_offsets"},
      {R"({"w":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", "header is damaged"},
      {R"({"w":[1,2]})", "header is damaged"},
      {R"([])", "header is damaged"},
      {R"({"w":{"dtype":"F32","shape":"x","data_offsets":[0,8]}})", "header is damaged"},
      {R"({"__metadata__":{"a":1}})", "header is damaged"},
      {std::string(100000, '['), "header is damaged"},
  };
  for (const auto& [header, part] : bad) {
    write_file(path, file_of(header, std::string(8, 'x')));
    memory::reset_peak(Device::cpu());
    const size_t before = memory::statistics(Device::cpu()).current;
    const std::string error = error_of([&] { nn::read_safetensors(path); });
    EXPECT_NE(error.find(part), std::string::npos) << header.substr(0, 100) << ": " << error;
    EXPECT_NE(error.find(path.string()), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LE(memory::statistics(Device::cpu()).peak, before + 4096) << header.substr(0, 100);
  }
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{19}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string file = file_of("{}", std::string(16, ' '));
    std::memcpy(file.data(), &length, 8);
    write_file(path, file);
    EXPECT_NE(error_of([&] { nn::read_safetensors(path); }).find("header of"), std::string::npos) << length;
  }
  EXPECT_NE(error_of([&] { nn::read_safetensors(folder / "nowhere"); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { nn::read_safetensors(folder / "."); }).find("not a file"), std::string::npos);
}

TEST(Safetensors, SaysBeforehandWhatCannotBeWritten) {
  const Folder folder;
  fs::create_directory(folder / "sub");
  write_file(folder / "file", "kept");
  EXPECT_NE(error_of([&] { nn::check_writable(folder / "none/a"); }).find("No such file or directory"),
            std::string::npos);
  EXPECT_NE(error_of([&] { nn::check_writable(folder / "sub"); }).find("it is a folder"), std::string::npos);
  EXPECT_NE(error_of([&] { nn::check_writable(folder / "file/a"); }).find("Not a directory"), std::string::npos);
  EXPECT_EQ(error_of([&] { nn::check_writable(folder / "file"); }), "");
  EXPECT_EQ(error_of([&] { nn::check_writable(folder / "new"); }), "");
  EXPECT_EQ(read_file(folder / "file"), "kept");
  EXPECT_EQ(folder.files(), 2u);
}

// A small training of everything that has state: a network with running statistics and dropout, an optimizer with
// moments, a schedule, and a loss scaler that grows, in the middle of its interval when it is saved.
struct Trained {
  struct Net : nn::Module {
    nn::Conv2d conv{{.in = 3, .out = 8, .kernel = 3, .padding = 1, .bias = false}};
    nn::BatchNorm2d norm{8};
    nn::GlobalAvgPool pool;
    nn::Dropout dropout{0.25};
    nn::Linear fc;
    explicit Net(int64_t classes) : fc({.in = 8, .out = classes}) {
      register_modules({{"conv", conv}, {"norm", norm}, {"pool", pool}, {"dropout", dropout}, {"fc", fc}});
    }
    Variable forward(const Variable& x) override { return fc(dropout(pool(relu(norm(conv(x)))))); }
  };

  struct Kind {
    bool adam = false;
    DType dtype = DType::F32;
    int64_t classes = 10;
    double beta1 = 0.9, beta2 = 0.999, momentum = 0.9;
    uint64_t seed = 3;
  };

  Trained(Device device, const Kind& kind)
      : device(device),
        dtype(kind.dtype),
        scaler({.init_scale = 16, .growth_interval = 7, .enabled = kind.dtype == DType::F16}) {
    manual_seed(kind.seed);
    net = std::make_unique<Net>(kind.classes);
    net->to(device);
    if (kind.adam)
      optimizer = std::make_unique<optim::Adam>(
          net->parameters(),
          optim::AdamOptions{.lr = 1e-2, .beta1 = kind.beta1, .beta2 = kind.beta2, .weight_decay = 1e-3});
    else
      optimizer = std::make_unique<optim::SGD>(
          net->parameters(), optim::SGDOptions{.lr = 0.05, .momentum = kind.momentum, .weight_decay = 1e-3});
    schedule = std::make_unique<optim::Schedule>(*optimizer,
                                                 optim::cosine({.lr = 0.05, .total_steps = 25, .warmup_steps = 3}));
  }

  void steps(int first, int count, double factor = 1) {
    for (int i = first; i < first + count; ++i) {
      const Tensor x = tensor_of(noise(4 * 6 * 6 * 3, static_cast<uint64_t>(i)), {4, 6, 6, 3}, DType::F32, device);
      const Tensor y = Tensor::from<int64_t>({i % 10, (i + 3) % 10, (i + 5) % 10, 9}, {4}, device);
      optimizer->zero_grad();
      Variable loss;
      {
        const amp::Autocast region(dtype);
        loss = nn::cross_entropy((*net)(x), y);
      }
      if (factor != 1) loss = scale(loss, factor);
      backward(scaler.scale(loss));
      scaler.step(*optimizer);
      scaler.update();
      schedule->step();
    }
  }

  nn::Training parts() { return {*net, *optimizer, scaler}; }
  void save(const fs::path& path, const nn::Notes& notes = {}) { nn::save_checkpoint(path, parts(), notes); }
  nn::Notes load(const fs::path& path) { return nn::load_checkpoint(path, parts()); }

  // All state, as bytes.
  std::map<std::string, std::string> everything() {
    std::map<std::string, std::string> all;
    for (const auto& [name, t] : net->state()) all["model." + name] = bytes_of(t);
    for (const auto& [name, t] : optimizer->state()) all["optimizer." + name] = bytes_of(t);
    for (const auto& [name, v] : scaler.state_dict()) all["scaler." + name] = fmt::format("{:a}", v);
    const RandomState& random = random_state(device);
    all["random"] = fmt::format("{} {}", random.seed, random.call) + bytes_of(random.step);
    return all;
  }

  Device device;
  DType dtype;
  std::unique_ptr<Net> net;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  amp::GradScaler scaler;
};

// The names whose bytes differ: short enough to print.
std::string differences(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  std::string names;
  for (const auto& [name, bytes] : a)
    if (!b.contains(name) || b.at(name) != bytes) names += name + " ";
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) names += name + " ";
  return names;
}

class Checkpoint : public OnDevice {};
DEMI_ON_ALL_DEVICES(Checkpoint);

TEST_P(Checkpoint, ResumedTrainingEqualsTheUninterruptedOne) {
  const Folder folder;
  for (const bool adam : {false, true})
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      const Trained::Kind kind{.adam = adam, .dtype = dtype};
      std::map<std::string, std::string> straight, half;
      {
        Trained t(device(), kind);
        t.steps(0, 10);
        half = t.everything();
        t.steps(10, 10);
        straight = t.everything();
      }
      {
        Trained t(device(), kind);
        t.steps(0, 10);
        t.save(folder / "a", {{"epoch", "7"}});
        EXPECT_EQ(differences(t.everything(), half), "") << "saving changes nothing";
      }
      // Other weights, another seed: all must come from the file.
      Trained t(device(), {.adam = adam, .dtype = dtype, .seed = 99});
      t.steps(50, 2);
      EXPECT_EQ(t.load(folder / "a"), (nn::Notes{{"epoch", "7"}}));
      EXPECT_EQ(differences(t.everything(), half), "");
      t.steps(10, 10);
      EXPECT_EQ(differences(t.everything(), straight), "") << (adam ? "Adam " : "SGD ") << name_of(dtype);
      EXPECT_NE(differences(half, straight), "");
      if (dtype == DType::F16) {
        EXPECT_EQ(t.scaler.get_scale(), 64);  // grown after 7 and 14 of 20 steps
        EXPECT_EQ(t.scaler.growth_tracker(), 6);
      }
    }
}

// 8 overflows from 65536, then 37 clean steps: scale and counter go on where they were.
TEST_P(Checkpoint, KeepsTheLossScale) {
  const Folder folder;
  const auto make = [&] { return amp::GradScaler({.init_scale = 65536, .growth_interval = 40}); };
  const Trained::Kind kind{.dtype = DType::F16};
  Trained t(device(), kind);
  t.scaler = make();
  t.steps(0, 8, INFINITY);
  t.steps(8, 37);
  t.save(folder / "a");
  Trained u(device(), kind);
  u.scaler = make();
  u.load(folder / "a");
  EXPECT_EQ(u.scaler.get_scale(), 256);
  EXPECT_EQ(u.scaler.growth_tracker(), 37);
  u.steps(45, 2);
  EXPECT_EQ(u.scaler.get_scale(), 256);
  u.steps(47, 1);
  EXPECT_EQ(u.scaler.get_scale(), 512);
}

// The saved betas hold, not those that the optimizer was built with: the next updates are the uninterrupted run's.
TEST_P(Checkpoint, RestoresTheNumbersOfTheUpdate) {
  const Folder folder;
  for (const bool adam : {true, false}) {
    const Trained::Kind saved{.adam = adam, .beta1 = 0.8, .beta2 = 0.99, .momentum = 0.5};
    Trained a(device(), saved);
    a.steps(0, 3);
    a.save(folder / "a");
    a.steps(3, 3);
    const auto straight = a.everything();
    Trained b(device(), {.adam = adam});
    b.load(folder / "a");
    b.steps(3, 3);
    EXPECT_EQ(differences(b.everything(), straight), "");
  }
}

// Whatever does not fit is named, and nothing is half-loaded.
TEST_P(Checkpoint, RefusesWhatDoesNotFit) {
  const Folder folder;
  const fs::path path = folder / "a";
  struct Case {
    Trained::Kind saved, loaded;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases{
      {{}, {.classes = 100}, {"'fc.bias' has shape [10], this model's is [100]"}},
      {{.adam = true}, {}, {"no 'sgd.dampening'", "of another optimizer"}},
      {{}, {.adam = true}, {"no 'adam.beta1'", "of another optimizer"}},
      {{}, {.momentum = 0}, {"'block0.moment0'"}},
      {{.momentum = 0}, {}, {"'block0.moment0'", "of another optimizer"}},
      {{.dtype = DType::F16}, {}, {"saved with a loss scaler", "resumed without one", "precision"}},
      {{}, {.dtype = DType::F16}, {"saved without a loss scaler", "resumed with one"}},
  };
  for (const Case& c : cases) {
    Trained(device(), c.saved).save(path);
    Trained t(device(), c.loaded);
    t.steps(0, 1);
    const auto before = t.everything();
    const std::string error = error_of([&] { t.load(path); });
    for (const std::string& part : c.parts) EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
    EXPECT_EQ(error.find(path.string()), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_EQ(differences(t.everything(), before), "") << error;
  }
}

// Files that are safetensors, but no whole checkpoint: what is missing is said before anything is loaded.
TEST_P(Checkpoint, RefusesIncompleteCheckpoints) {
  const Folder folder;
  const fs::path path = folder / "a";
  Trained t(device(), {.dtype = DType::F16});
  t.steps(0, 1);
  t.save(path, {{"epoch", "1"}});
  const nn::Safetensors good = nn::read_safetensors(path);
  t.steps(1, 1);
  const auto before = t.everything();
  const auto expect_error = [&](const std::string& what, const std::function<void(nn::Safetensors&)>& change) {
    nn::Safetensors bad = good;
    change(bad);
    nn::write_safetensors(path, bad);
    const std::string error = error_of([&] { t.load(path); });
    EXPECT_EQ(error.find(path.string()), 0u) << what << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_EQ(differences(t.everything(), before), "") << what;
  };
  for (const auto& [name, tensor] : good.tensors) expect_error(name, [&](auto& f) { f.tensors.erase(name); });
  for (const auto& [name, text] : good.metadata) {
    expect_error(name, [&](auto& f) { f.metadata.erase(name); });
    expect_error(name, [&](auto& f) { f.metadata[name] = "{"; });
    expect_error(name, [&](auto& f) { f.metadata[name] = "[1]"; });
  }
  expect_error("scale", [](auto& f) { f.metadata["scaler"] = R"({"scale":4})"; });
  expect_error("random", [](auto& f) { f.tensors["random.step"] = Tensor::zeros({2}, DType::F32); });
  expect_error("another", [](auto& f) { f.tensors["model.more"] = Tensor::zeros({2}, DType::F32); });
  write_file(path, read_file(fs::path(DEMI_SOURCE_DIR) / "tests/golden/op_cases.safetensors"));
  EXPECT_NE(error_of([&] { t.load(path); }).find("not a checkpoint"), std::string::npos);
  nn::write_safetensors(path, good);
  EXPECT_EQ(t.load(path).at("epoch"), "1");
}

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    good_.steps(0, 2);
    good_.save(path_, {{"epoch", "1"}, {"flags", "[\"--lr=0.1\"]"}});
    bytes_ = read_file(path_);
    mine_.steps(20, 1);
    before_ = mine_.everything();
  }
  // The changed file must be refused, with one line that names it, and change nothing.
  void expect_refused(const std::string& file, const std::string& what) {
    write_file(path_, file);
    for (const bool notes : {false, true}) {
      const std::string error =
          error_of([&] { notes ? static_cast<void>(nn::read_notes(path_)) : static_cast<void>(mine_.load(path_)); });
      ASSERT_EQ(error.find(path_.string()), 0u) << what << ": " << error;
      ASSERT_EQ(error.find('\n'), std::string::npos) << what << ": " << error;
    }
  }

  const Folder folder_;
  const fs::path path_ = folder_ / "a.ckpt";
  Trained good_{Device::cpu(), {.adam = true, .dtype = DType::F16}},
      mine_{Device::cpu(), {.adam = true, .dtype = DType::F16}};
  std::string bytes_;
  std::map<std::string, std::string> before_;
};

TEST_F(Damage, TruncatedAnywhere) {
  for (size_t i = 0; i < 100; ++i) {
    const size_t length = i < 20 ? i : i >= 95 ? bytes_.size() - (100 - i) : bytes_.size() * (i - 20) / 75;
    ASSERT_NO_FATAL_FAILURE(expect_refused(bytes_.substr(0, length), fmt::format("cut to {} bytes", length)));
  }
  expect_refused(bytes_ + '\0', "one byte too many");
  EXPECT_EQ(differences(mine_.everything(), before_), "");
}

TEST_F(Damage, OneByteFlippedAnywhere) {
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
  EXPECT_EQ(differences(mine_.everything(), before_), "");
}

// The words that the checksum's own place depends on, every byte of them.
TEST_F(Damage, EveryByteAroundTheChecksum) {
  const size_t metadata = bytes_.find("__metadata__"), sum = bytes_.find("demi_checksum");
  ASSERT_LT(metadata, sum);  // side by side: the checksum is the first of the metadata
  ASSERT_LT(sum, metadata + 100);
  for (size_t at = metadata - 2; at < sum + 35; ++at) {
    std::string file = bytes_;
    file[at] = static_cast<char>(file[at] ^ 1);
    ASSERT_NO_FATAL_FAILURE(expect_refused(file, fmt::format("byte {}, '{}'", at, bytes_[at])));
  }
  EXPECT_EQ(differences(mine_.everything(), before_), "");
}

TEST_F(Damage, LeftoversOfAKilledWriteDoNoHarm) {
  write_file(path_.string() + ".partial", bytes_.substr(0, bytes_.size() / 2));
  EXPECT_EQ(mine_.load(path_).at("epoch"), "1");
  good_.steps(2, 1);
  good_.save(path_, {{"epoch", "2"}});
  EXPECT_EQ(mine_.load(path_).at("epoch"), "2");
  EXPECT_EQ(folder_.files(), 1u);
}

// A process that overwrites one checkpoint again and again is killed at any moment: what is there afterwards is whole.
TEST_F(Damage, KilledWhileOverwriting) {
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
