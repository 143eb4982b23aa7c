// amp_lessons: every lesson runs and its predictions hold, what the frame does with one that does not, bad command
// lines.
#include "demi/examples/amp_lessons/lesson.h"

#include <regex>

#include "programs.h"

namespace demi::test {
namespace {

using lessons::Entry;
using lessons::Lesson;

// Names and questions, from the program's own list.
std::map<std::string, std::string> listed(const std::string& out) {
  std::map<std::string, std::string> questions;
  const std::regex row("^  ([a-z_]+) +(.+\\?)$");
  std::istringstream lines(out);
  std::smatch found;
  for (std::string line; std::getline(lines, line);)
    if (std::regex_match(line, found, row)) questions[found[1]] = found[2];
  return questions;
}

size_t lines_with(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) count += line.starts_with(start);
  return count;
}

// Under sanitizers the lessons that train take minutes, and run nothing that other tests do not run there.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kOnlyShort = true;
#else
constexpr bool kOnlyShort = false;
#endif
bool left_out(const std::string& name) {
  return kOnlyShort && name != "numbers" && name != "sums" && name != "autocast";
}

class Lessons : public Programs {};
DEMI_ON_ALL_DEVICES(Lessons);

TEST_P(Lessons, EachRunsAndItsPredictionsHold) {
  const auto questions = listed(run("amp_lessons", {}).out);
  ASSERT_GE(questions.size(), 8u);
  for (const auto& [name, question] : questions) {
    if (left_out(name)) continue;
    const Result r = run("amp_lessons", on_device({name, "--fast", "--out", "charts"}));
    EXPECT_EQ(r.code, 0) << name << r.out << r.err;
    EXPECT_TRUE(r.out.starts_with(name + ": " + question + "\n")) << r.out;
    EXPECT_EQ(lines_with(r.out, "does not hold:"), 0u) << r.out;
    EXPECT_GE(lines_with(r.out, "holds:"), 3u) << r.out;
    EXPECT_EQ(lines_with(r.err, "wrote charts/" + name), lines_with(r.err, "")) << r.err;
    EXPECT_GE(lines_with(r.err, "wrote charts/" + name), 1u) << r.err;
  }
  for (const auto& chart : fs::directory_iterator(work_ / "charts")) {
    const std::string svg = read_file(chart);
    EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n")) << chart;
    EXPECT_EQ(svg.find("nan"), std::string::npos) << chart;
  }
}

TEST_P(Lessons, PrintTheSameEachTime) {
  for (const char* name : {"sums", "underflow", "autocast", "memory"}) {
    if (left_out(name)) continue;
    const Words words = on_device({name, "--data", "synthetic:320", "--fast"});
    EXPECT_EQ(run("amp_lessons", words).out, run("amp_lessons", words).out) << name;
  }
}

class LessonFrame : public Programs {};
INSTANTIATE_TEST_SUITE_P(, LessonFrame, ::testing::Values("cpu"), device_name);

// A lesson's file starts with the question that the program lists, and ends before it gets long.
TEST_P(LessonFrame, FilesAskTheirQuestion) {
  for (const auto& [name, question] : listed(run("amp_lessons", {}).out)) {
    const std::string source = read_file(fs::path(DEMI_SOURCE_DIR) / "examples/amp_lessons" / (name + ".cpp"));
    EXPECT_TRUE(source.starts_with("// " + name + ": " + question + "\n")) << source.substr(0, 100);
    EXPECT_NE(source.find("// Prediction"), std::string::npos) << name;
    EXPECT_LT(std::count(source.begin(), source.end(), '\n'), 150) << name;
  }
}

void right(Lesson& lesson) { lesson.predict("one is one", true); }
void wrong(Lesson& lesson) {
  lesson.predict("one is one", true);
  lesson.predict("one is two", false);
  lesson.predict("two is two", true);
}
void failing(Lesson&) { fail("[lesson] no such thing"); }
constexpr Entry kEntries[] = {
    {"right", "Is one one?", right}, {"wrong", "Is one two?", wrong}, {"failing", "?", failing}};

int status_of(Words words, std::string& out) {
  words.insert(words.begin(), "amp_lessons");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  ::testing::internal::CaptureStdout();
  const int status = lessons::run_program(static_cast<int>(argv.size()), argv.data(), kEntries);
  out = ::testing::internal::GetCapturedStdout();
  return status;
}

TEST_P(LessonFrame, BrokenPredictionsFailTheProgram) {
  const bool before = deterministic();
  std::string out;
  EXPECT_EQ(status_of({"right", "--device", "cpu"}, out), 0);
  EXPECT_EQ(out, "right: Is one one?\nholds: one is one\n");
  EXPECT_EQ(status_of({"wrong", "--device", "cpu"}, out), 1);
  EXPECT_EQ(out, "wrong: Is one two?\nholds: one is one\ndoes not hold: one is two\nholds: two is two\n");
  EXPECT_EQ(status_of({"failing", "--device", "cpu"}, out), 1);
  set_deterministic(before);
}

TEST_P(LessonFrame, Tables) {
  lessons::Table table({"name", "n", "share"});
  table.row("a", 5, "10 %");
  table.row("longer", 12345, 0.5);
  EXPECT_EQ(table.str(),
            "name        n  share\n"
            "------  -----  -----\n"
            "a           5   10 %\n"
            "longer  12345    0.5\n");
  EXPECT_THROW(table.row("a", 1), Error);
}

TEST_P(LessonFrame, ExponentChart) {
  kernels::ValueCounts counts;
  counts.exponents[static_cast<size_t>(-100 - kernels::ValueCounts::kLowest)] = 1;  // left of the chart: at its end
  counts.exponents[static_cast<size_t>(-14 - kernels::ValueCounts::kLowest)] = 2;
  counts.exponents[static_cast<size_t>(16 - kernels::ValueCounts::kLowest)] = 1;
  EXPECT_EQ(lessons::median_exponent(counts), "2^-14");
  const lessons::BarChart chart = lessons::exponent_chart("sizes", {{"layer", counts}});
  ASSERT_EQ(chart.tooltips.size(), 69u);
  const std::vector<double>& shares = chart.series.at(0).values;
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::string& e = chart.tooltips[i];
    EXPECT_EQ(shares[i], e == "2^-48" || e == "2^16" ? 25 : e == "2^-14" ? 50 : 0) << e;
    // FP16 makes zero of 2^-26 and less, infinity of 2^16 and more.
    const auto in = [&](size_t band) {
      return chart.bands[band].from < static_cast<double>(i) && static_cast<double>(i) < chart.bands[band].to;
    };
    const double middle = 1.5 * std::exp2(std::stoi(e.substr(2)));
    const float half = Half(static_cast<float>(middle));
    EXPECT_EQ(in(0), half == 0) << e;
    EXPECT_EQ(in(1), half > 0 && half < 0x1p-14f) << e;
    EXPECT_EQ(in(2), half >= 0x1p-14f && std::isfinite(half)) << e;
    EXPECT_EQ(in(3), std::isinf(half)) << e;
  }
}

TEST_P(LessonFrame, BadCommandLines) {
  const auto bad = [&](const Words& words, const Words& parts, const Process::Setup& setup = {}) {
    expect_failure("amp_lessons", words, parts, setup);
  };
  bad({"number"}, {"no lesson 'number'", "numbers", "sums"});
  bad({"numbers", "sums"}, {"sums", "--help"});
  bad({"numbers", "--fastest"}, {"--fastest", "--help"});
  bad({"numbers", "--device", "tpu"}, {"'tpu'", "cpu"});
  bad({"numbers", "--seed", "-1"}, {"--seed", "'-1'"});
  bad({"numbers", "--seed"}, {"--seed"});
  bad({"lost_updates", "--data", "nowhere"}, {"nowhere"});
  bad({"numbers", "--out", "/proc/none"}, {"/proc/none"});
  bad({"numbers"}, {"DEMI_AMP=0", "unset"}, {.environment = {"DEMI_AMP=0"}});
}

}  // namespace
}  // namespace demi::test
