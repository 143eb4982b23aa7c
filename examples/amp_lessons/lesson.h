// What the lessons share: a lesson's question, its tables, its predictions and its charts. A lesson is one function in
// a file of its own; main.cpp lists them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/data/loader.h"
#include "demi/examples/common/chart.h"
#include "demi/kernels/value_counts.h"

namespace demi::lessons {

using examples::BarChart;
using examples::Chart;

// Aligned plain text: the first column to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}

  // One value a column, of any type that fmt prints; throws Error for another count.
  template <typename... Cells>
  void row(const Cells&... cells) {
    add({fmt::format("{}", cells)...});
  }
  void add(std::vector<std::string> cells);
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the heading first
};

struct LessonOptions {
  Device device{};
  std::string data = "synthetic";  // what data::open() takes
  std::string out{};               // folder for charts; empty: none are written
  uint64_t seed = 0;
  bool fast = false;  // for tests: the same code and predictions with fewer steps of training
};

// A lesson that runs. What it prints is the same in every run on one device: no times, no addresses.
class Lesson {
 public:
  explicit Lesson(LessonOptions options) : options_(std::move(options)) {}

  Device device() const { return options_.device; }
  uint64_t seed() const { return options_.seed; }
  bool fast() const { return options_.fast; }
  data::Source open_data() const { return data::open(options_.data); }

  // Starts a part of the output. Its title is what chapters in docs/learn quote it by.
  void section(std::string_view title);
  // A line of text.
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print("{}\n", fmt::format(format, std::forward<Args>(args)...));
  }
  void show(const Table& table);
  // Checks what the header of the lesson predicted; one that does not hold makes the program fail at its end.
  void predict(std::string_view statement, bool holds);
  bool all_hold() const { return broken_ == 0; }

  // With --out DIR: DIR/<name>.svg.
  void save(const std::string& name, const Chart& chart);
  void save(const std::string& name, const BarChart& chart);

 private:
  void write(const std::string& name, const std::string& svg);
  LessonOptions options_;
  int broken_ = 0;
};

struct Entry {
  std::string_view name, question;
  void (*run)(Lesson& lesson);
};

// A histogram of the exponents of what was counted, each part by its name, beside FP16's range.
BarChart exponent_chart(const std::string& title,
                        const std::vector<std::pair<std::string, kernels::ValueCounts>>& parts);

// "2^-14": half of what was counted is below 2^-13.
std::string median_exponent(const kernels::ValueCounts& counts);

// The program: its command line, the list of lessons, one lesson. Returns the exit status: 0, 1 for a prediction that
// does not hold or an Error, 2 for a command line that cannot be understood.
int run_program(int argc, char** argv, std::span<const Entry> lessons);

}  // namespace demi::lessons
