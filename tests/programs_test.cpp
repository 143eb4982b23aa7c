// The programs as people run them: what goes wrong gives one clear line and a failing exit and leaves nothing behind;
// what goes right writes what it promises, and a resumed training is the uninterrupted one.
#include <sys/mount.h>

#include <functional>

#include "programs.h"

namespace demi::test {
namespace {

DEMI_ON_ALL_DEVICES(Programs);

// Bad input is the same on every device: the CPU's tests are enough.
class BadInput : public Programs {};
INSTANTIATE_TEST_SUITE_P(, BadInput, ::testing::Values("cpu"), device_name);

TEST_P(BadInput, Flags) {
  const std::vector<std::pair<Words, Words>> cases{
      {{"--nope"}, {"unknown flag --nope", "--help"}},
      {{"--epoch", "3"}, {"unknown flag --epoch", "did you mean --epochs", "--help"}},
      {{"--epoch=3"}, {"unknown flag --epoch", "did you mean --epochs"}},
      {{"--momentun", "0.9"}, {"unknown flag --momentun", "did you mean --momentum;"}},
      {{"--labels=1"}, {"unknown flag --labels", "did you mean --label-smoothing;"}},
      {{"extra"}, {"unknown argument extra", "--help"}},
      {{"--data", ""}, {"--data", "the value is empty"}},
      {{"--compare", ""}, {"--compare", "the value is empty"}},
      {{"--resume", ""}, {"--resume", "the value is empty"}},
      {{"--batch"}, {"--batch"}},
      {{"--batch", "0"}, {"--batch", "'0'", "at least 1"}},
      {{"--batch", "-3"}, {"--batch", "'-3'", "at least 1"}},
      {{"--batch", "1.5"}, {"--batch", "'1.5'", "whole number"}},
      {{"--batch", "99999999999999999999"}, {"--batch", "'99999999999999999999'", "whole number"}},
      {{"--epochs", "0"}, {"--epochs", "'0'", "from 1 to 100000"}},
      {{"--epochs", "1000000000"}, {"--epochs", "'1000000000'", "from 1 to 100000"}},
      {{"--stop-after", "0"}, {"--stop-after", "at least 1"}},
      {{"--accumulate", "0"}, {"--accumulate", "at least 1"}},
      {{"--eval-every", "0"}, {"--eval-every", "at least 1"}},
      {{"--precision", "fp8"}, {"--precision", "'fp8'", "fp32, tf32, fp16, bf16"}},
      {{"--compare", "fp32"}, {"--compare", "two or more", "'fp32'"}},
      {{"--compare", ","}, {"--compare", "two or more"}},
      {{"--compare", "fp32,fp8"}, {"'fp8'", "fp32, tf32, fp16 or bf16"}},
      {{"--compare", "fp16,fp16"}, {"--compare", "fp16 twice"}},
      {{"--device", "cuda:99"}, {"no", "device"}},
      {{"--device", "gpu"}, {"'gpu'", "auto, cpu, cuda or cuda:N"}},
      {{"--device", "cuda:x"}, {"'cuda:x'", "auto, cpu, cuda or cuda:N"}},
      {{"--loss-scale", "abc"}, {"--loss-scale", "'abc'", "dynamic", "positive number"}},
      {{"--loss-scale", "0"}, {"--loss-scale", "'0'", "positive number"}},
      {{"--loss-scale", "-8"}, {"--loss-scale", "positive number"}},
      {{"--loss-scale", "inf"}, {"--loss-scale", "'inf'"}},
      {{"--loss-scale", "nan"}, {"--loss-scale", "'nan'"}},
      {{"--loss-scale", "1e300"}, {"--loss-scale", "'1e300'"}},
      {{"--init-scale", "0"}, {"--init-scale", "above 0"}},
      {{"--init-scale", "inf"}, {"--init-scale", "'inf'"}},
      {{"--growth-interval", "0"}, {"--growth-interval", "'0'"}},
      {{"--width", "0"}, {"--width", "'0'", "above 0 and at most 16"}},
      {{"--width", "17"}, {"--width", "above 0 and at most 16"}},
      {{"--depth", "19"}, {"--depth", "'19'", "18, 34, 50, 101, 152"}},
      {{"--stem", "mnist"}, {"--stem", "cifar, imagenet"}},
      {{"--lr", "nan"}, {"--lr", "'nan'"}},
      {{"--lr", "-1"}, {"--lr", "'-1'", "at least 0"}},
      {{"--lr", "fast"}, {"--lr", "'fast'"}},
      {{"--momentum", "1.5"}, {"--momentum", "from 0 to 1"}},
      {{"--momentum", "0", "--nesterov"}, {"nesterov needs momentum"}},
      {{"--weight-decay", "nan"}, {"--weight-decay", "'nan'"}},
      {{"--label-smoothing", "2"}, {"--label-smoothing", "from 0 to 1"}},
      {{"--clip", "nan"}, {"--clip", "'nan'"}},
      {{"--warmup", "5", "--epochs", "5"}, {"--warmup 5", "5 epochs"}},
      {{"--warmup", "nan"}, {"--warmup", "'nan'"}},
      {{"--warmup", "1", "--schedule", "one_cycle"}, {"one_cycle", "--warmup"}},
      {{"--schedule", "exp"}, {"--schedule", "cosine, step, one_cycle, constant"}},
      {{"--augment", "cutout"}, {"--augment", "crop+flip, flip, none"}},
      {{"--seed", "-1"}, {"--seed"}},
      {{"--data", "synthetic:0"}, {"'synthetic:0'", "10 to 1000000"}},
      {{"--data", "synthetic:1e3"}, {"'synthetic:1e3'"}},
      {{"--data", "synthetic:160", "--batch", "161", "--drop-last"}, {"--drop-last", "161", "160"}},
  };
  for (const auto& [arguments, parts] : cases) {
    expect_bad(arguments + Words{"--out", "out", "--save", "a.ckpt"}, parts);
    if (HasFailure()) break;
  }
  if (cuda_is_missing()) expect_bad({"--device", "cuda"}, {"no CUDA device", "cpu"});
}

TEST_P(BadInput, OtherPrograms) {
  expect_failure("simple_cnn", {"--nope"}, {"--nope", "--help"});
  expect_failure("simple_cnn", {"--epochs", "0"}, {"--epochs"});
  expect_failure("simple_cnn", {"--precision", "fp8"}, {"fp8"});
  expect_failure("simple_cnn", {"--data", "nowhere"}, {"nowhere", "no such folder"});
  expect_failure("train_step", {"--nope"}, {"--nope", "--help"});
  expect_failure("train_step", {"--precision", "fp8"}, {"fp8"});
  expect_failure("replay_scaler_traces", {}, {"FILE"});
  expect_failure("replay_scaler_traces", {"nowhere.json"}, {"nowhere.json", "no such file"});
  std::ofstream(work_ / "no.json") << "{";
  std::ofstream(work_ / "empty.json") << "{\"traces\": []}";
  expect_failure("replay_scaler_traces", {"no.json"}, {"no.json", "no JSON"});
  expect_failure("replay_scaler_traces", {"empty.json"}, {"empty.json", "'traces' is empty"});
  expect_failure("replay_scaler_traces", {"empty.json", "--device", "gpu"}, {"gpu"});
  expect_failure("replay_scaler_traces", {"empty.json", "--device", "cpu", "--graph"}, {"--graph", "CUDA"});
}

TEST_P(BadInput, Environment) {
  expect_bad(tiny(), {"DEMI_MEMORY_LIMIT", "'lots'", "8GiB"}, {.environment = {"DEMI_MEMORY_LIMIT=lots"}});
}

// Files of the official size, which take no space: zeros are black images of class 0.
TEST_P(BadInput, Data) {
  const fs::path data = work_ / "data", batches = data / "cifar-10-batches-bin";
  fs::create_directories(batches);
  const auto make = [](const fs::path& file, int64_t bytes, uint8_t first) {
    std::ofstream(file, std::ios::binary).put(static_cast<char>(first));
    fs::resize_file(file, static_cast<uintmax_t>(bytes));
  };
  const auto make_all = [&] {
    for (uint8_t i = 1; i <= 5; ++i) make(batches / fmt::format("data_batch_{}.bin", i), 30730000, 0);
    make(batches / "test_batch.bin", 30730000, 1);
  };
  const Words flags{"--data", "data", "--out", "out", "--save", "a.ckpt"};

  expect_bad({"--data", "nowhere", "--out", "out"}, {"nowhere", "no such folder", "cifar-10-batches-bin"});
  expect_bad(flags, {"data", "cifar-10-batches-bin/", "data_batch_1.bin"});
  make_all();
  fs::remove(batches / "data_batch_3.bin");
  expect_bad(flags, {"data_batch_3.bin", "missing", "30730000"});
  make_all();
  fs::resize_file(batches / "data_batch_2.bin", 30729999);
  expect_bad(flags, {"data_batch_2.bin", "30729999 bytes", "30730000"});
  make_all();
  make(batches / "data_batch_4.bin", 30730000, 10);
  expect_bad(flags, {"data_batch_4.bin", "record 0", "label 10", "0 to 9"});
  make_all();
  make(batches / "data_batch_5.bin", 30740000, 0);
  expect_bad(flags, {"data_batch_5.bin", "CIFAR-100", "30730000"});
  fs::remove_all(batches);
  fs::create_directory(batches);
  make(batches / "train.bin", 50000 * 3074, 0);  // CIFAR-100's files in CIFAR-10's folder
  make(batches / "test.bin", 10000 * 3074, 0);
  expect_bad(flags, {"data", "CIFAR-10"});
}

TEST_P(BadInput, Checkpoints) {
  train(tiny({"--stop-after", "1", "--save", "good.ckpt"}));
  const std::string bytes = read_file(work_ / "good.ckpt");
  const Words to{"--out", "out", "--save", "b.ckpt"};
  expect_bad(Words{"--resume", "nowhere.ckpt"} + to, {"nowhere.ckpt", "No such file"});
  expect_bad(Words{"--resume", "good.ckpt", "--width", "0.125"} + to,
             {"good.ckpt", "--width=0.0625", "not --width=0.125", "the same training"});
  expect_bad(Words{"--resume", "good.ckpt", "--epochs", "5"} + to, {"--epochs=4", "not --epochs=5"});
  expect_bad(Words{"--resume", "good.ckpt", "--lr", "0.2"} + to, {"--lr=0.1", "not --lr=0.2"});
  expect_bad(Words{"--resume", "good.ckpt", "--seed", "1"} + to, {"--seed=0", "not --seed=1"});
  expect_bad(Words{"--resume", "good.ckpt", "--nesterov"} + to, {"--nesterov=false", "not --nesterov=true"});
  expect_bad(Words{"--resume", "good.ckpt", "--precision", "fp16"} + to, {"--precision=fp32", "not --precision=fp16"});
  expect_bad(Words{"--resume", "good.ckpt", "--data", "synthetic"} + to, {"synthetic:160", "not --data=synthetic:"});
  expect_bad(Words{"--resume", "good.ckpt", "--schedule-epochs", "9"} + to, {"--schedule-epochs=4"});
  expect_bad({"--resume", "good.ckpt", "--compare", "fp32,fp16"}, {"--resume", "--compare"});

  const auto write = [&](const std::string& content) {
    std::ofstream(work_ / "bad.ckpt", std::ios::binary) << content;
  };
  for (const size_t length : {size_t{0}, size_t{7}, size_t{500}, bytes.size() / 2, bytes.size() - 1}) {
    write(bytes.substr(0, length));
    expect_bad(Words{"--resume", "bad.ckpt"} + to, {"bad.ckpt"});
  }
  std::string flipped = bytes;
  flipped[flipped.size() / 2] ^= 4;
  write(flipped);
  expect_bad(Words{"--resume", "bad.ckpt"} + to, {"bad.ckpt", "checksum", "damaged"});
  write(read_file(fs::path(DEMI_SOURCE_DIR) / "tests/golden/op_cases.safetensors"));
  expect_bad(Words{"--resume", "bad.ckpt"} + to, {"bad.ckpt", "not a checkpoint"});
  // A checkpoint whose notes belong to a narrower model than its tensors.
  nn::Safetensors other = nn::read_safetensors(work_ / "good.ckpt");
  std::string& notes = other.metadata["notes"];
  notes.replace(notes.find("--width=0.0625"), 14, "--width=0.1250");
  nn::write_safetensors(work_ / "bad.ckpt", other);
  expect_bad(Words{"--resume", "bad.ckpt"} + to, {"bad.ckpt", "0.125"});
  EXPECT_EQ(read_file(work_ / "good.ckpt"), bytes);
}

// What cannot be written is said before the training, not after it.
TEST_P(BadInput, Outputs) {
  std::ofstream(work_ / "file") << "kept";
  fs::create_directory(work_ / "sub");
  expect_bad(tiny({"--out", "file"}), {"file", "cannot"});
  expect_bad(tiny({"--out", "file/sub"}), {"file/sub", "cannot"});
  expect_bad(tiny({"--save", "none/a.ckpt"}), {"none/a.ckpt", "cannot be written", "No such file or directory"});
  expect_bad(tiny({"--save", "sub"}), {"sub", "cannot be written", "it is a folder"});
  expect_bad(tiny({"--save", "none/a.ckpt", "--compare", "fp32,fp16"}), {"none/a.ckpt.fp32", "cannot be written"});
  expect_bad(tiny({"--out", "/proc/here"}), {"/proc/here", "cannot"});
  EXPECT_EQ(read_file(work_ / "file"), "kept");
}

// As on a disk that is full: the checkpoint does not fit. The one before stays.
TEST_P(BadInput, NoSpaceForTheCheckpoint) {
  train(tiny({"--stop-after", "1", "--save", "a.ckpt"}));
  const std::string before = read_file(work_ / "a.ckpt");
  ASSERT_GT(before.size(), 100000u);
  expect_bad({"--resume", "a.ckpt", "--stop-after", "2", "--save", "a.ckpt"},
             {"a.ckpt", "cannot be written", "unchanged"}, {.largest_file = 50000});
  EXPECT_EQ(read_file(work_ / "a.ckpt"), before);

  // And a real full disk, where this process may make one.
  const fs::path disk = work_ / "disk";
  fs::create_directory(disk);
  const std::string size = fmt::format("size={}", before.size() + 65536);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, size.c_str()) != 0) return;
  fs::copy_file(work_ / "a.ckpt", disk / "a.ckpt");
  expect_bad({"--resume", "disk/a.ckpt", "--stop-after", "2", "--save", "disk/a.ckpt"},
             {"disk/a.ckpt", "No space left on device", "unchanged"});
  EXPECT_EQ(read_file(disk / "a.ckpt"), before);
  umount(disk.c_str());
}

TEST_P(Programs, OutOfMemoryIsOneClearLine) {
  const Result r =
      run("cifar_resnet", on_device(tiny({"--width", "0.5"})), {.environment = {"DEMI_MEMORY_LIMIT=20MiB"}});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(r.err.starts_with("cifar_resnet: ")) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  for (const char* part : {"has no room for", "the limit is 20.0 MiB", "weights", "activations", "smaller batch"})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << ": " << r.err;
}

TEST_P(Programs, HelpFitsIntoAHundredColumns) {
  for (const char* program : {"cifar_resnet", "simple_cnn", "train_step", "replay_op_cases", "replay_scaler_traces"}) {
    const Result r = run(program, {"--help"});
    EXPECT_EQ(r.code, 0) << program;
    EXPECT_EQ(r.err, "") << program;
    EXPECT_NE(r.out.find("--help"), std::string::npos) << program;
    std::istringstream lines(r.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << program << ": " << line;
  }
  const Result r = run("demi_info", {});
  EXPECT_EQ(r.code, 0);
  EXPECT_NE(r.out.find("auto means"), std::string::npos) << r.out;
}

TEST_P(Programs, WritesMetricsReportAndCommand) {
  const Result r = train(tiny({"--precision", "fp32", "--epochs", "3", "--eval-every", "2", "--out", "a/out put"}));
  EXPECT_NE(r.out.find("synthetic: 160 training and 53 test images"), std::string::npos) << r.out;
  const fs::path out = work_ / "a/out put";
  std::ifstream in(out / "metrics.jsonl");
  std::vector<nlohmann::ordered_json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::ordered_json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) {
    Words keys;
    for (const auto& [key, value] : lines[i].items()) keys.push_back(key);
    EXPECT_EQ(keys, (Words{"epoch", "train_loss", "test_loss", "test_accuracy", "seconds", "images_per_second",
                           "peak_bytes", "skipped_steps", "loss_scale", "lr"}));
    EXPECT_EQ(lines[i]["epoch"], i + 1);
    EXPECT_GT(lines[i]["train_loss"], 0.1);
    EXPECT_LT(lines[i]["train_loss"], 4.0);
    EXPECT_GT(lines[i]["seconds"], 0.0);
    EXPECT_NEAR(lines[i]["images_per_second"].get<double>() * lines[i]["seconds"].get<double>(), 160, 0.1);
    EXPECT_GT(lines[i]["peak_bytes"], 1 << 20);
    EXPECT_EQ(lines[i]["skipped_steps"], 0);
    EXPECT_EQ(lines[i]["loss_scale"], 1);
    EXPECT_GE(lines[i]["lr"], 0.0);
  }
  EXPECT_TRUE(lines[0]["test_accuracy"].is_null());
  for (const size_t i : {1, 2}) {
    EXPECT_GE(lines[i]["test_accuracy"], 0.0);
    EXPECT_LE(lines[i]["test_accuracy"], 1.0);
    EXPECT_GT(lines[i]["test_loss"], 0.0);
  }
  const std::string report = read_file(out / "report.html"), command = read_file(out / "command.txt");
  EXPECT_NE(report.find("</html>"), std::string::npos);
  EXPECT_NE(report.find("<svg"), std::string::npos);
  for (const char* load : {"src=", "href=", "url(", "@import", "https://"})
    EXPECT_EQ(report.find(load), std::string::npos) << load;
  for (size_t at = report.find("http://"); at != std::string::npos; at = report.find("http://", at + 1))
    EXPECT_EQ(report.substr(at, 26), "http://www.w3.org/2000/svg") << "the one name of SVG, which loads nothing";
  EXPECT_NE(command.find("cifar_resnet --data synthetic:160"), std::string::npos) << command;
  EXPECT_NE(command.find("'a/out put'"), std::string::npos) << command;
  EXPECT_TRUE(nlohmann::json::parse(read_file(out / "run.json")).contains("device"));
  EXPECT_TRUE(fs::exists(out / "last.ckpt"));
}

TEST_P(Programs, AFlagStandsAboveItsRecipe) {
  const Words plain = tiny({"--recipe", "plain", "--stop-after", "1"});
  EXPECT_NE(train(plain).out.find("7x7 stem"), std::string::npos);
  EXPECT_NE(train(plain + Words{"--stem", "cifar"}).out.find("3x3 stem"), std::string::npos);
}

TEST_P(Programs, CompareTrainsEachPrecisionAndPrintsTheTable) {
  const Result r =
      train(tiny({"--epochs", "2", "--compare", "fp32,fp16", "--init-scale", "128", "--out", "out", "--save", "c"}));
  for (const char* part : {"\nfp32\n", "\nfp16\n", "|    fp32 |    fp16 | fp16 against fp32 |", "seconds an epoch",
                           "peak memory", "test accuracy", "report.html, fp32/metrics.jsonl, fp16/metrics.jsonl\n"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in " << r.out;
  for (const char* name : {"fp32", "fp16"}) {
    EXPECT_EQ(metrics(work_ / "out" / name).size(), 2u);
    EXPECT_TRUE(fs::exists(work_ / (std::string("c.") + name)));
  }
  EXPECT_EQ(metrics(work_ / "out/fp16")[1]["loss_scale"], 128);
  const std::string report = read_file(work_ / "out/report.html");
  for (const char* part : {"fp32", "fp16", "</html>"}) EXPECT_NE(report.find(part), std::string::npos) << part;
  // Each is the training that it would be alone.
  train(tiny({"--epochs", "2", "--precision", "fp16", "--init-scale", "128", "--save", "alone"}));
  expect_same_training(work_ / "c.fp16", work_ / "alone");
}

TEST_P(Programs, AmpCanBeSwitchedOff) {
  train(tiny({"--epochs", "1", "--save", "a", "--precision", "fp32"}));
  const Result r =
      train(tiny({"--epochs", "1", "--save", "b", "--precision", "fp16"}), {.environment = {"DEMI_AMP=0"}});
  EXPECT_NE(r.out.find("DEMI_AMP=0"), std::string::npos) << r.out;
  const nn::Safetensors a = nn::read_safetensors(work_ / "a"), b = nn::read_safetensors(work_ / "b");
  for (const auto& [name, t] : a.tensors)
    EXPECT_EQ(std::memcmp(t.raw(), b.tensors.at(name).raw(), t.bytes()), 0) << name;
}

// Stopped after two of four epochs and resumed in a new process: the same bytes, the same metrics.
TEST_P(Programs, ResumedTrainingEqualsTheStraightOne) {
  for (const char* precision : {"fp32", "fp16"}) {
    SCOPED_TRACE(precision);
    // 10 steps an epoch: growth every 7 leaves the scaler in the middle of its interval.
    const Words flags = tiny({"--precision", precision, "--init-scale", "64", "--growth-interval", "7",
                              "--deterministic", "--label-smoothing", "0.1", "--clip", "5", "--accumulate", "1"});
    train(flags + Words{"--save", "straight", "--out", "straight.out"});
    train(flags + Words{"--stop-after", "2", "--save", "half", "--out", "half.out"});
    const Result r = train({"--resume", "half", "--save", "resumed", "--out", "half.out", "--deterministic"});
    EXPECT_NE(r.out.find("4"), std::string::npos);
    expect_same_training(work_ / "straight", work_ / "resumed");
    EXPECT_EQ(metrics(work_ / "straight.out"), metrics(work_ / "half.out"));
    EXPECT_EQ(metrics(work_ / "half.out").size(), 4u);
    if (std::string(precision) == "fp16") {
      const auto scaler = nlohmann::json::parse(nn::read_safetensors(work_ / "half").metadata.at("scaler"));
      EXPECT_EQ(scaler.at("scale"), 256);  // grew after 7 and 14 of 20 steps
      EXPECT_EQ(scaler.at("growth_tracker"), 6);
    }
  }
  // What is done is not done again.
  const Result r = train({"--resume", "resumed", "--out", "half.out"});
  EXPECT_NE(r.out.find("nothing left to train"), std::string::npos) << r.out;
  EXPECT_EQ(metrics(work_ / "half.out").size(), 4u);
}

// Ctrl-C, or the SIGTERM of a batch system, in the middle of an epoch saves; resumed, it is as if nothing had happened.
TEST_P(Programs, CtrlCAndSigtermSaveAndResumeGoesOn) {
  const Words flags = tiny({"--data", "synthetic:640", "--batch", "8", "--epochs", "2", "--precision", "fp16",
                            "--init-scale", "64", "--growth-interval", "50", "--deterministic"});
  train(flags + Words{"--save", "straight", "--out", "straight.out"});
  const auto end_midway = [&](int signal, const Words& words) {
    const auto process = start("cifar_resnet", on_device(words + Words{"--save", "a", "--out", "out"}));
    while (process->output_so_far().find("recipe") == std::string::npos && !process->ended())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    process->interrupt(signal);
    const Result r = process->wait();
    EXPECT_EQ(r.code, 128 + signal) << r.err << r.out;
    EXPECT_EQ(r.err, "");
    EXPECT_NE(r.out.find("--resume a"), std::string::npos) << r.out;
    EXPECT_TRUE(fs::exists(work_ / "out/report.html"));
    const auto notes = nlohmann::json::parse(nn::read_safetensors(work_ / "a").metadata.at("notes"));
    return 80 * std::stoi(notes.at("epoch").get<std::string>()) + std::stoi(notes.at("next_batch").get<std::string>());
  };
  const int first = end_midway(SIGINT, flags), second = end_midway(SIGTERM, {"--resume", "a", "--deterministic"});
  EXPECT_GT(first, 0);
  EXPECT_GT(second, first);
  EXPECT_LT(second, 160);
  train({"--resume", "a", "--save", "a", "--out", "out", "--deterministic"});
  expect_same_training(work_ / "straight", work_ / "a");
  EXPECT_EQ(metrics(work_ / "straight.out"), metrics(work_ / "out"));
}

}  // namespace
}  // namespace demi::test
