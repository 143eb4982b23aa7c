// What cifar_resnet writes to --out: metrics.jsonl and its resuming, the command, the table, the charts, the report.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/examples/cifar_resnet/progress.h"
#include "demi/examples/cifar_resnet/report.h"
#include "demi/examples/common/chart.h"

namespace demi::examples {
namespace {

namespace fs = std::filesystem;

class Report : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("demi_report_{}", std::chrono::steady_clock::now().time_since_epoch().count());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string text(const char* file) const {
    std::ifstream in(folder_ / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    std::ifstream in(folder_ / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  fs::path folder_;
};

EpochMetrics epoch(int64_t n, double accuracy = 0.5) {
  return {.epoch = n,
          .train_loss = 2.0 / static_cast<double>(n),
          .test_loss = 2.5 / static_cast<double>(n),
          .test_accuracy = accuracy,
          .seconds = 2,
          .images_per_second = 25000,
          .peak_bytes = int64_t{3} << 30,
          .skipped_steps = 1,
          .loss_scale = 65536,
          .lr = 0.1};
}

TEST_F(Report, ALineOfJsonAnEpoch) {
  MetricsLog log(folder_ / "deep" / "er", "fp16");
  folder_ /= "deep/er";
  log.add(epoch(1));
  EXPECT_EQ(lines().size(), 1u);  // at once, not at the end
  log.add(epoch(2, std::numeric_limits<double>::quiet_NaN()));
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  for (const char* key : {"epoch", "train_loss", "test_loss", "test_accuracy", "seconds", "images_per_second",
                          "peak_bytes", "skipped_steps", "loss_scale", "lr"})
    EXPECT_TRUE(all[0].contains(key)) << key;
  EXPECT_EQ(all[0]["epoch"], 1);
  EXPECT_EQ(all[0]["test_accuracy"], 0.5);
  EXPECT_EQ(all[0]["peak_bytes"], int64_t{3} << 30);
  EXPECT_TRUE(all[1]["test_accuracy"].is_null());  // not measured
  folder_ = folder_.parent_path().parent_path();
}

TEST_F(Report, ResumingKeepsTheEpochsDone) {
  {
    MetricsLog log(folder_, "fp32");
    for (int64_t n = 1; n <= 4; ++n) log.add(epoch(n));
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "{\"epoch\": 5, \"train_l";  // a crash
  }
  MetricsLog log(folder_, "fp32", 3);
  EXPECT_EQ(log.run().epochs.size(), 3u);
  log.add(epoch(4, 0.75));
  const auto all = lines();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[2]["epoch"], 3);
  EXPECT_EQ(all[3]["test_accuracy"], 0.75);
  EXPECT_TRUE(MetricsLog(folder_, "fp32").run().epochs.empty());
  EXPECT_TRUE(lines().empty());  // a new run starts anew
}

TEST_F(Report, WhatCannotBeWrittenIsAnError) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(MetricsLog(folder_ / "file", "fp32"), Error);
  EXPECT_THROW(MetricsLog(folder_ / "file" / "below", "fp32"), Error);
  EXPECT_THROW(write_run_info(folder_ / "file", "x", {}), Error);
  EXPECT_THROW(write_report(folder_ / "none" / "report.html", "t", "c", {}, {}), Error);
}

TEST_F(Report, CommandAndFacts) {
  const char* argv[] = {"./cifar_resnet", "--data", "my data", "--name", "it's", ""};
  const std::string command = command_line(6, argv);
  EXPECT_EQ(command, R"(./cifar_resnet --data 'my data' --name 'it'\''s' '')");
  write_run_info(folder_, command, {{"device", "cpu"}, {"cuDNN", "9.19"}});
  EXPECT_EQ(text("command.txt"), command + "\n");
  const auto json = nlohmann::json::parse(text("run.json"));
  EXPECT_EQ(json["command"], command);
  EXPECT_EQ(json["cuDNN"], "9.19");
  EXPECT_EQ(machine_facts(Device::cpu()).at(0).second, "cpu");
}

TEST_F(Report, TableComparesWithTheFirstRun) {
  std::vector<examples::Run> runs{{"fp32", {epoch(1, 0.9), epoch(2, 0.93)}},
                                  {"fp16", {epoch(1, 0.95), epoch(2, 0.925)}}};
  for (EpochMetrics& m : runs[1].epochs) {
    m.seconds = 0.5;
    m.peak_bytes = int64_t{4} << 30;
  }
  const std::string table = comparison_table(runs);
  for (const char* part : {"fp16 against fp32", "4.00x faster", "1.33x more", "93.00 %", "92.50 %", "-0.50 points"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
}

TEST_F(Report, OneFileWithoutLinks) {
  const std::vector<examples::Run> runs{{"fp32", {epoch(1), epoch(2)}},
                                        {"fp16 <b>", {epoch(1), epoch(2, std::nan(""))}}};
  fs::create_directories(folder_);
  write_report(folder_ / "report.html", "A & B", "./x", {{"device", "cpu"}}, runs);
  write_report(folder_ / "empty.html", "none", "./x", {}, {{"fp32", {}}});
  const std::string html = text("report.html");
  EXPECT_NE(html.find("A &amp; B"), std::string::npos);
  EXPECT_NE(html.find("fp16 &lt;b&gt;"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme"), std::string::npos);
  for (const char* outside : {"src=", "href=", "url(", "<script", "@import", "nan", "inf\""})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  write_charts(folder_, runs);
  for (const char* file : {"loss.svg", "accuracy.svg", "lr.svg", "loss_scale.svg"})
    EXPECT_EQ(text(file).rfind("<svg xmlns=", 0), 0u) << file;
}

TEST(Chart, Bars) {
  const double nan = std::nan("");
  BarChart chart{.title = "b", .groups = {"one", "", "three"}};
  chart.series = {{.name = "first", .values = {1, 2, nan}}, {.name = "second", .values = {3, 0, 1}, .colour = 1}};
  chart.bands = {{.name = "left", .from = -0.5, .to = 0.5}, {.name = "outside", .from = 7, .to = 9}};
  const auto count = [](const std::string& svg, const std::string& what) {
    size_t n = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  for (const bool stacked : {false, true}) {
    chart.stacked = stacked;
    const std::string svg = to_svg(chart);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(count(svg, "class=\"b f0\""), 2u);  // neither a gap nor a zero has a bar
    EXPECT_EQ(count(svg, "class=\"b f1\""), 2u);
    EXPECT_EQ(count(svg, "class=\"band\""), 1u);
    EXPECT_NE(svg.find(">left</text>"), std::string::npos);
    const auto y_of = [&](const char* element) {
      return std::stod(svg.substr(svg.find(" y=\"", svg.rfind(element)) + 4));
    };
    EXPECT_GT(y_of("class=\"band\""), y_of("class=\"key\"") + 3);  // below the tails of the legend's letters
    EXPECT_EQ(svg.find("outside"), std::string::npos);
    EXPECT_NE(svg.find("<title>second, three: 1</title>"), std::string::npos);
    EXPECT_EQ(svg.find(">5</text>") != std::string::npos || svg.find(">4</text>") != std::string::npos, stacked);
  }
  EXPECT_NE(to_svg(BarChart{.title = "none"}).find("</svg>"), std::string::npos);
}

TEST(Chart, LogarithmicXAndBands) {
  Chart chart{.title = "t", .series = {{.name = "a", .x = {0, 0.25, 4}, .y = {1, 2, 3}}}};
  chart.log2_x = true;
  chart.bands = {{.name = "half", .from = 1, .to = 4}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);  // 0 has no place on the axis: left out
  EXPECT_NE(svg.find(">2^-2</text>"), std::string::npos);
  EXPECT_NE(svg.find(">4</text>"), std::string::npos);
  EXPECT_NE(svg.find(">half</text>"), std::string::npos);
}

TEST(Chart, GapsAndOddValues) {
  const double nan = std::nan("");
  EXPECT_NE(to_svg(Chart{.title = "none", .series = {}}).find("</svg>"), std::string::npos);
  const std::string svg = to_svg(
      Chart{.title = "t",
            .series = {{.name = "a", .x = {1, 2, 3, 4}, .y = {1, nan, 3, 4}}, {.name = "b", .x = {1}, .y = {nan}}}});
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("<circle class=\"f0\""), std::string::npos);  // the point on its own
  EXPECT_NE(to_svg(Chart{.title = "log", .series = {{.name = "a", .x = {1, 2}, .y = {0.25, 0}}}, .log2_y = true})
                .find("2^-2"),
            std::string::npos);
}

TEST(Progress, FormatsForPeople) {
  EXPECT_EQ(format_bytes(int64_t{784} << 20), "784 MiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_duration(7.4), "0:07");
  EXPECT_EQ(format_duration(3723), "1:02:03");
}

TEST(Progress, PlainLinesWhereThereIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress(2, 0, file);
    progress.start_epoch(1, 10);
    progress.step(5, 500);
    progress.end_epoch(epoch(1, 0.91));
    progress.say("done");
  }
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("test 91.00 %"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

}  // namespace
}  // namespace demi::examples
