#include "demi/examples/cifar_resnet/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "demi/core/backend.h"
#include "demi/core/parallel.h"
#include "demi/core/processor.h"
#include "demi/examples/cifar_resnet/progress.h"
#include "demi/examples/common/chart.h"

namespace demi::examples {
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const EpochMetrics& m) {
  return {{"epoch", m.epoch},           {"train_loss", m.train_loss},
          {"test_loss", m.test_loss},   {"test_accuracy", m.test_accuracy},
          {"seconds", m.seconds},       {"images_per_second", m.images_per_second},
          {"peak_bytes", m.peak_bytes}, {"skipped_steps", m.skipped_steps},
          {"loss_scale", m.loss_scale}, {"lr", m.lr}};
}

EpochMetrics from_json(const Json& j) {
  const auto number = [&](const char* key) { return j.at(key).is_null() ? std::nan("") : j.at(key).get<double>(); };
  return {.epoch = j.at("epoch").get<int64_t>(),
          .train_loss = number("train_loss"),
          .test_loss = number("test_loss"),
          .test_accuracy = number("test_accuracy"),
          .seconds = number("seconds"),
          .images_per_second = number("images_per_second"),
          .peak_bytes = j.at("peak_bytes").get<int64_t>(),
          .skipped_steps = j.at("skipped_steps").get<int64_t>(),
          .loss_scale = number("loss_scale"),
          .lr = number("lr")};
}

template <typename F>
double median(const Run& run, F&& value) {
  std::vector<double> v;
  for (const EpochMetrics& m : run.epochs) v.push_back(value(m));
  if (v.empty()) return std::nan("");
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

// What a run comes down to. The last epoch's test counts, not the best one's, and its memory: in the first one the
// search for convolution plans needs more.
struct Summary {
  double seconds, images_per_second, peak_bytes = 0, accuracy = std::nan("");
  explicit Summary(const Run& run)
      : seconds(median(run, [](const EpochMetrics& m) { return m.seconds; })),
        images_per_second(median(run, [](const EpochMetrics& m) { return m.images_per_second; })) {
    for (const EpochMetrics& m : run.epochs) {
      peak_bytes = static_cast<double>(m.peak_bytes);
      if (!std::isnan(m.test_accuracy)) accuracy = m.test_accuracy;
    }
  }
};

std::string ratio(double a, double b) { return b > 0 && a > 0 ? fmt::format("{:.2f}x", a / b) : "-"; }
std::string percent(double fraction) { return std::isnan(fraction) ? "-" : fmt::format("{:.2f} %", 100 * fraction); }

// "1.91x less", or from the other side "1.10x more".
std::string times(double a, double b, const char* over, const char* under) {
  if (!(a > 0 && b > 0)) return "-";
  return a >= b ? fmt::format("{:.2f}x {}", a / b, over) : fmt::format("{:.2f}x {}", b / a, under);
}

using Table = std::vector<std::vector<std::string>>;  // rows of cells, the first one the heading

Table compare(const std::vector<Run>& runs) {
  std::vector<Summary> s;
  for (const Run& run : runs) s.emplace_back(run);
  Table t{{""}, {"seconds an epoch"}, {"images/s"}, {"peak memory"}, {"test accuracy"}};
  for (size_t i = 0; i < runs.size(); ++i) {
    t[0].push_back(runs[i].name);
    t[1].push_back(fmt::format("{:.2f}", s[i].seconds));
    t[2].push_back(fmt::format("{:.0f}", s[i].images_per_second));
    t[3].push_back(format_bytes(static_cast<int64_t>(s[i].peak_bytes)));
    t[4].push_back(percent(s[i].accuracy));
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    t[0].push_back(fmt::format("{} against {}", runs[i].name, runs[0].name));
    t[1].push_back(times(s[0].seconds, s[i].seconds, "faster", "slower"));
    t[2].push_back(ratio(s[i].images_per_second, s[0].images_per_second));
    t[3].push_back(times(s[0].peak_bytes, s[i].peak_bytes, "less", "more"));
    t[4].push_back(std::isnan(s[i].accuracy - s[0].accuracy)
                       ? "-"
                       : fmt::format("{:+.2f} points", 100 * (s[i].accuracy - s[0].accuracy)));
  }
  return t;
}

Table epoch_table(const Run& run) {
  Table t{{"epoch", "train loss", "test loss", "test accuracy", "seconds", "images/s", "peak memory", "skipped steps",
           "loss scale", "lr"}};
  const auto number = [](double v) { return std::isnan(v) ? std::string("-") : fmt::format("{:.4f}", v); };
  for (const EpochMetrics& m : run.epochs)
    t.push_back({std::to_string(m.epoch), number(m.train_loss), number(m.test_loss), percent(m.test_accuracy),
                 fmt::format("{:.2f}", m.seconds), fmt::format("{:.0f}", m.images_per_second),
                 format_bytes(m.peak_bytes), std::to_string(m.skipped_steps), fmt::format("{:g}", m.loss_scale),
                 fmt::format("{:.4g}", m.lr)});
  return t;
}

std::string to_html(const Table& table) {
  std::string out = "<div class=\"scroll\"><table>\n";
  for (size_t r = 0; r < table.size(); ++r) {
    out += "<tr>";
    for (size_t c = 0; c < table[r].size(); ++c) {
      const char* tag = r == 0 || c == 0 ? "th" : "td";
      out += fmt::format("<{}>{}</{}>", tag, escape_html(table[r][c]), tag);
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

struct NamedChart {
  const char* file;
  Chart chart;
};

std::vector<NamedChart> make_charts(const std::vector<Run>& runs) {
  Chart loss{"Loss", "epoch", "cross-entropy", {}, "{:.4f}", false, {}, {}};
  Chart accuracy{"Test accuracy", "epoch", "correct [%]", {}, "{:.2f} %", false, {}, {}};
  Chart lr{"Learning rate", "epoch", "learning rate", {}, "{:.4g}", false, 0.0, {}};
  Chart scale{"Loss scale", "epoch", "scale (log)", {}, "{:g}", true, {}, {}};
  bool scaled = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const auto series = [&](const std::string& name, bool dashed, auto&& value) {
      Series s{name, {}, {}, static_cast<int>(i), dashed};
      for (const EpochMetrics& m : run.epochs) {
        s.x.push_back(static_cast<double>(m.epoch));
        s.y.push_back(value(m));
      }
      return s;
    };
    const Summary summary(run);
    loss.series.push_back(series(run.name + " training", false, [](const EpochMetrics& m) { return m.train_loss; }));
    loss.series.push_back(series(run.name + " test", true, [](const EpochMetrics& m) { return m.test_loss; }));
    accuracy.series.push_back(series(fmt::format("{}: {}", run.name, percent(summary.accuracy)), false,
                                     [](const EpochMetrics& m) { return 100 * m.test_accuracy; }));
    lr.series.push_back(series(run.name, i > 0, [](const EpochMetrics& m) { return m.lr; }));
    if (std::any_of(run.epochs.begin(), run.epochs.end(), [](const EpochMetrics& m) { return m.loss_scale != 1; })) {
      scale.series.push_back(series(run.name, false, [](const EpochMetrics& m) { return m.loss_scale; }));
      scaled = true;
    }
  }
  // A test left out in some epochs must not cut the line: keep the points there are.
  for (Chart* chart : {&loss, &accuracy})
    for (Series& s : chart->series) {
      size_t kept = 0;
      for (size_t i = 0; i < s.y.size(); ++i)
        if (!std::isnan(s.y[i])) {
          s.x[kept] = s.x[i];
          s.y[kept++] = s.y[i];
        }
      s.x.resize(kept);
      s.y.resize(kept);
    }
  std::vector<NamedChart> charts{{"accuracy", accuracy}, {"loss", loss}, {"lr", lr}};
  if (scaled) charts.push_back({"loss_scale", scale});
  return charts;
}

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

constexpr const char* kPageStyle = R"(<style>
:root{color-scheme:light dark;--ink:#1f2430;--soft:#667085;--rule:#e4e7ec;--page:#f6f7f9;--card:#ffffff}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--rule:#2b313c;--page:#0e1116;--card:#151920}}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1160px;margin:0 auto;padding:24px 20px 48px}h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 10px}
code,pre{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre,.scroll,.charts svg,dl{background:var(--card);border:1px solid var(--rule);border-radius:8px}
pre{padding:12px 14px;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}.charts svg{width:100%;height:auto;display:block;box-sizing:border-box}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}tr:first-child th{border-top:0;color:var(--soft);font-weight:500}
th:first-child{text-align:left;font-weight:500}dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;padding:12px 14px;margin:0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
summary{cursor:pointer;margin:20px 0 10px;font-size:17px;font-weight:600}
</style>)";

}  // namespace

std::string command_line(int argc, const char* const* argv) {
  std::string out;
  for (int i = 0; i < argc; ++i) {
    const std::string_view arg = argv[i];
    constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./,:@%";
    if (i > 0) out += ' ';
    if (!arg.empty() && arg.find_first_not_of(plain) == std::string_view::npos) {
      out += arg;
      continue;
    }
    out += '\'';
    for (const char c : arg) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

Facts machine_facts(Device device) {
  const backend::Versions v = backend::versions();
  Facts facts{{"device", device.str()}};
  if (device.is_cuda()) {
    const backend::DeviceInfo info = backend::device_info(device.index());
    facts.emplace_back("GPU", fmt::format("{}, compute capability {}.{}, {}", info.name, info.major, info.minor,
                                          format_bytes(static_cast<int64_t>(info.memory_bytes))));
  }
  facts.emplace_back("processor", fmt::format("{}, {} threads", processor_name(), num_threads()));
  facts.emplace_back("built with", fmt::format("{}, {}", v.built_with, kCompiler));
  const std::pair<const char*, const std::string*> parts[] = {
      {"CUDA driver", &v.driver}, {"CUDA runtime", &v.runtime}, {"cuDNN", &v.cudnn}, {"cuBLAS", &v.cublas}};
  for (const auto& [name, version] : parts)
    if (!version->empty()) facts.emplace_back(name, *version);
  return facts;
}

MetricsLog::MetricsLog(const fs::path& folder, std::string run_name, int64_t done_epochs)
    : path_(folder / "metrics.jsonl"), run_{std::move(run_name), {}} {
  make_folder(folder);
  std::string kept;
  if (done_epochs > 0) {
    std::ifstream before(path_);
    for (std::string line; std::getline(before, line);) {
      const Json json = Json::parse(line, nullptr, false);  // a line cut short by a crash is dropped
      if (!json.is_object()) continue;
      try {
        const EpochMetrics metrics = from_json(json);
        if (metrics.epoch > done_epochs) continue;
        run_.epochs.push_back(metrics);
        kept += line + "\n";
      } catch (const Json::exception&) {  // another program's line
      }
    }
  }
  write_whole(path_, kept);
  file_.open(path_, std::ios::app);
  if (!file_) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

void MetricsLog::add(const EpochMetrics& metrics) {
  run_.epochs.push_back(metrics);
  file_ << to_json(metrics).dump() << '\n' << std::flush;
  if (!file_) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

std::string comparison_table(const std::vector<Run>& runs) {
  const Table table = compare(runs);
  std::vector<size_t> width(table[0].size());
  for (const auto& row : table)
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max({width[c], row[c].size(), size_t{3}});
  std::string out;
  for (size_t r = 0; r < table.size(); ++r) {
    for (size_t c = 0; c < table[r].size(); ++c)
      out +=
          c == 0 ? fmt::format("| {:<{}} |", table[r][c], width[c]) : fmt::format(" {:>{}} |", table[r][c], width[c]);
    out += '\n';
    if (r > 0) continue;
    for (size_t c = 0; c < width.size(); ++c)
      out += c == 0 ? fmt::format("|{:-<{}}|", "", width[c] + 2) : fmt::format("{:-<{}}:|", "", width[c] + 1);
    out += '\n';
  }
  return out;
}

void write_run_info(const fs::path& folder, const std::string& command, const Facts& facts) {
  make_folder(folder);
  write_whole(folder / "command.txt", command + "\n");
  Json json{{"command", command}};
  for (const auto& [name, value] : facts) json[name] = value;
  write_whole(folder / "run.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_report(const fs::path& file, const std::string& title, const std::string& command, const Facts& facts,
                  const std::vector<Run>& runs) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n{1}</head>\n<body><main>\n<h1>{0}</h1>\n",
      escape_html(title), kPageStyle);
  out += "<h2>Result</h2>\n";
  out += to_html(compare(runs));
  out += "<h2>Curves</h2>\n<div class=\"charts\">\n";
  for (const NamedChart& c : make_charts(runs)) out += to_svg(c.chart);
  out += "</div>\n";
  for (const Run& run : runs)
    out += fmt::format("<details{}><summary>Every epoch of {}</summary>\n{}</details>\n",
                       runs.size() == 1 ? " open" : "", escape_html(run.name), to_html(epoch_table(run)));
  out += fmt::format("<h2>Command</h2>\n<pre>{}</pre>\n<h2>Made with</h2>\n<dl>\n", escape_html(command));
  for (const auto& [name, value] : facts)
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_html(name), escape_html(value));
  write_whole(file, out + "</dl>\n</main></body>\n</html>\n");
}

void write_charts(const fs::path& folder, const std::vector<Run>& runs) {
  make_folder(folder);
  for (const NamedChart& c : make_charts(runs)) write_whole(folder / (std::string(c.file) + ".svg"), to_svg(c.chart));
}

}  // namespace demi::examples
