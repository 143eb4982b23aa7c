#include "demi/examples/amp_lessons/lesson.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "demi/amp/autocast.h"
#include "demi/examples/common/files.h"
#include "demi/kernels/random.h"

namespace demi::lessons {

void Table::add(std::vector<std::string> cells) {
  DEMI_CHECK(cells.size() == rows_[0].size(), "[table] {} cells for {} columns", cells.size(), rows_[0].size());
  rows_.push_back(std::move(cells));
}

std::string Table::str() const {
  std::vector<size_t> width(rows_[0].size());
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < width.size(); ++c)
      line += c == 0 ? fmt::format("{:<{}}", rows_[r][c], width[c]) : fmt::format("  {:>{}}", rows_[r][c], width[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r > 0) continue;
    for (size_t c = 0; c < width.size(); ++c) out += std::string(c == 0 ? 0 : 2, ' ') + std::string(width[c], '-');
    out += "\n";
  }
  return out;
}

void Lesson::section(std::string_view title) { fmt::print("\n{}\n{:=<{}}\n", title, "", title.size()); }

void Lesson::show(const Table& table) { fmt::print("{}", table.str()); }

void Lesson::predict(std::string_view statement, bool holds) {
  fmt::print("{} {}\n", holds ? "holds:" : "does not hold:", statement);
  if (!holds) ++broken_;
}

void Lesson::save(const std::string& name, const Chart& chart) { write(name, examples::to_svg(chart)); }
void Lesson::save(const std::string& name, const BarChart& chart) { write(name, examples::to_svg(chart)); }

void Lesson::write(const std::string& name, const std::string& svg) {
  if (options_.out.empty()) return;
  const auto path = std::filesystem::path(options_.out) / (name + ".svg");
  examples::write_whole(path, svg);
  fmt::print(stderr, "wrote {}\n", path.string());  // not part of what the lesson prints
}

BarChart exponent_chart(const std::string& title,
                        const std::vector<std::pair<std::string, kernels::ValueCounts>>& parts) {
  constexpr int low = -48, high = 20;  // of the exponents shown; what is smaller or larger is counted at the ends
  const auto at = [](int e) { return static_cast<double>(e - low) - 0.5; };
  BarChart chart{.title = title, .x_label = "size, as a power of two", .y_label = "share [%]", .stacked = true};
  // 2^-25 itself rounds to zero, what is above it to 2^-24.
  chart.bands = {{"zero in FP16", at(low), at(-25)},
                 {"subnormal", at(-25), at(-14)},
                 {"normal", at(-14), at(16)},
                 {"infinite", at(16), at(high + 1)}};
  int64_t all = 0;
  for (const auto& [name, counts] : parts) all += counts.finite_non_zero();
  for (const auto& [name, counts] : parts) {
    examples::Bars bars{.name = name, .colour = static_cast<int>(chart.series.size())};
    bars.values.resize(high - low + 1);
    for (size_t i = 0; i < counts.exponents.size(); ++i) {
      const int e = std::clamp(static_cast<int>(i) + kernels::ValueCounts::kLowest, low, high);
      bars.values[static_cast<size_t>(e - low)] +=
          100 * static_cast<double>(counts.exponents[i]) / static_cast<double>(std::max<int64_t>(all, 1));
    }
    chart.series.push_back(std::move(bars));
  }
  for (int e = low; e <= high; ++e) {
    chart.tooltips.push_back(fmt::format("2^{}", e));
    chart.groups.push_back(e % 8 == 0 ? chart.tooltips.back() : "");
  }
  return chart;
}

std::string median_exponent(const kernels::ValueCounts& counts) {
  size_t i = 0;
  for (int64_t below = counts.exponents[0]; 2 * below < counts.finite_non_zero(); below += counts.exponents[i]) ++i;
  return fmt::format("2^{}", static_cast<int>(i) + kernels::ValueCounts::kLowest);
}

namespace {

void list(std::span<const Entry> lessons) {
  fmt::print("amp_lessons NAME runs a lesson; --help lists the flags.\n\n");
  size_t width = 0;
  for (const Entry& e : lessons) width = std::max(width, e.name.size());
  for (const Entry& e : lessons) fmt::print("  {:<{}}  {}\n", e.name, width, e.question);
}

int run_lesson(const Entry& entry, LessonOptions options, const std::string& device) {
  DEMI_CHECK(amp::amp_allowed(), "DEMI_AMP=0 in the environment switches off what the lessons show: unset it");
  options.device = Device::parse(device);
  set_deterministic(true);
  manual_seed(options.seed);
  if (!options.out.empty()) examples::make_folder(options.out);  // a folder that cannot be made is known at once
  Lesson lesson(std::move(options));
  fmt::print("{}: {}\n", entry.name, entry.question);
  entry.run(lesson);
  return lesson.all_hold() ? 0 : 1;
}

}  // namespace

int run_program(int argc, char** argv, std::span<const Entry> lessons) {
  LessonOptions options;
  std::string name, device = "auto";
  CLI::App app{"Mixed precision, learned by seeing it happen. Without NAME: the lessons and their questions."};
  app.name("amp_lessons");
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("amp_lessons: {}; --help lists the flags\n", e.what());
  });
  app.add_option("NAME", name, "the lesson");
  app.add_option("--device", device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--data", options.data, "what networks train on: synthetic, or the folder of CIFAR-10's binary files")
      ->capture_default_str();
  app.add_option("--out", options.out, "folder to write the charts to, as SVG");
  app.add_option("--seed", options.seed, "of weights and data")
      ->capture_default_str()
      ->type_name("N")
      ->check([](const std::string& text) {
        const bool whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return whole ? std::string() : fmt::format("'{}' is not a whole number from 0", text);
      });
  app.add_flag("--fast", options.fast, "fewer steps of training, for tests");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (name.empty()) {
    list(lessons);
    return 0;
  }
  const auto entry = std::find_if(lessons.begin(), lessons.end(), [&](const Entry& e) { return e.name == name; });
  if (entry == lessons.end()) {
    std::vector<std::string_view> names;
    for (const Entry& e : lessons) names.push_back(e.name);
    fmt::print(stderr, "amp_lessons: no lesson '{}': {}\n", name, fmt::join(names, ", "));
    return 2;
  }
  try {
    return run_lesson(*entry, std::move(options), device);
  } catch (const Error& e) {
    std::fflush(stdout);
    fmt::print(stderr, "amp_lessons: {}\n", e.what());
    return 1;
  }
}

}  // namespace demi::lessons
