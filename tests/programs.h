// Programs of this build as tests run them: processes with their output, and a folder of their own.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "demi/nn/safetensors.h"
#include "devices.h"

namespace demi::test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Result {
  int code = -1;  // of the exit; 128 + the signal that ended it
  std::string out{}, err{};
};

// A program of this build, running.
class Process {
 public:
  struct Setup {
    Words environment{};                   // NAME=value, beside this process's own
    fs::path folder = fs::current_path();  // where it runs
    rlim_t largest_file = RLIM_INFINITY;   // bytes; more is refused as on a full disk
  };

  Process(const std::string& program, const Words& arguments, const Setup& setup, const fs::path& log)
      : out_(log.string() + ".out"), err_(log.string() + ".err") {
    const std::string path = std::string(DEMI_PROGRAM_FOLDER) + "/" + program;
    Words words{path};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    const int out = open(out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644),
              err = open(err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644), in = open("/dev/null", O_RDONLY);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (const std::string& e : setup.environment) putenv(const_cast<char*>(e.c_str()));
    if (setup.largest_file != RLIM_INFINITY) {
      const rlimit limit{setup.largest_file, setup.largest_file};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (chdir(setup.folder.c_str()) == 0) execv(path.c_str(), argv.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string output_so_far() const { return read_file(out_); }
  void interrupt(int signal = SIGINT) const { kill(pid_, signal); }
  bool ended() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ <= 0;
  }
  Result wait() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!ended() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (pid_ > 0) return {-1, read_file(out_), "still running after two minutes"};
    const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    return {code, read_file(out_), read_file(err_)};
  }

 private:
  fs::path out_, err_;
  pid_t pid_ = -1;
  int status_ = 0;
};

// Names of all that lies in a folder, with sizes.
inline std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    names.insert(fmt::format("{} {}", fs::relative(entry.path(), folder).string(),
                             entry.is_regular_file() ? static_cast<int64_t>(entry.file_size()) : -1));
  return names;
}

// Arguments of a training that takes a fraction of a second: 160 images, 10 steps an epoch.
inline Words tiny(const Words& more = {}) {
  Words all{"--data", "synthetic:160", "--width", "0.0625", "--batch", "16", "--epochs", "4", "--deterministic"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Programs : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    std::string name = (fs::temp_directory_path() / "demi_programs_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    logs_ = folder_ / "logs";
    work_ = folder_ / "work";  // the current folder of the programs
    fs::create_directory(logs_);
    fs::create_directory(work_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  std::unique_ptr<Process> start(const std::string& program, const Words& arguments, Process::Setup setup = {}) {
    setup.folder = work_;
    return std::make_unique<Process>(program, arguments, setup, logs_ / std::to_string(runs_++));
  }
  Result run(const std::string& program, const Words& arguments, const Process::Setup& setup = {}) {
    return start(program, arguments, setup)->wait();
  }
  // cifar_resnet on this test's device.
  Words on_device(const Words& arguments) const { return arguments + Words{"--device", GetParam()}; }
  Result train(const Words& arguments, const Process::Setup& setup = {}) {
    const Result r = run("cifar_resnet", on_device(arguments), setup);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    return r;
  }
  // The run must fail with one line that has all of `parts`, and leave the folder as it was.
  void expect_failure(const std::string& program, const Words& arguments, const Words& parts,
                      const Process::Setup& setup = {}) {
    const std::set<std::string> before = listing(work_);
    const Result r = run(program, arguments, setup);
    const std::string what = fmt::format("{} {}: {}", program, fmt::join(arguments, " "), r.err);
    EXPECT_GT(r.code, 0) << what;
    EXPECT_LT(r.code, 126) << "not ended by a signal, " << what;
    EXPECT_TRUE(r.err.starts_with(program + ": ")) << what;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << what;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << "no " << part << ": " << what;
    EXPECT_EQ(listing(work_), before) << what;
  }
  void expect_bad(const Words& arguments, const Words& parts, const Process::Setup& setup = {}) {
    expect_failure("cifar_resnet", arguments, parts, setup);
  }

  // All that two checkpoints hold, except how long it took.
  static void expect_same_training(const fs::path& a, const fs::path& b) {
    const nn::Safetensors x = nn::read_safetensors(a), y = nn::read_safetensors(b);
    ASSERT_EQ(x.tensors.size(), y.tensors.size());
    for (const auto& [name, t] : x.tensors) {
      ASSERT_TRUE(y.tensors.contains(name)) << name;
      const Tensor& u = y.tensors.at(name);
      ASSERT_EQ(t.bytes(), u.bytes()) << name;
      EXPECT_EQ(std::memcmp(t.raw(), u.raw(), t.bytes()), 0) << name;
    }
    for (const char* key : {"scaler", "random"}) EXPECT_EQ(x.metadata.at(key), y.metadata.at(key));
    auto notes = nlohmann::json::parse(x.metadata.at("notes")), others = nlohmann::json::parse(y.metadata.at("notes"));
    notes.erase("seconds");
    others.erase("seconds");
    EXPECT_EQ(notes, others);
  }
  // The lines of metrics.jsonl, without what depends on the clock and on the history of the process.
  static std::vector<nlohmann::json> metrics(const fs::path& folder) {
    std::vector<nlohmann::json> lines;
    std::ifstream in(folder / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      lines.push_back(nlohmann::json::parse(line));
      for (const char* key : {"seconds", "images_per_second", "peak_bytes"}) lines.back().erase(key);
    }
    return lines;
  }

  fs::path folder_, logs_, work_;
  int runs_ = 0;
};

}  // namespace demi::test
