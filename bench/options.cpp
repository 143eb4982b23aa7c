#include "demi/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>

#include "demi/bench/sets.h"

namespace demi::bench {
namespace {

constexpr const char* kAbout =
    "Measures demi's operations in FP32, TF32, FP16 and BF16. Each result is compared with a\n"
    "reference of higher precision first. bench/README.md says how it measures and what is counted.";
constexpr const char* kFooter =
    "\nAll flags of Google Benchmark work beside these, such as\n"
    "  --benchmark_filter=REGEX              those whose names match\n"
    "  --benchmark_out=FILE --benchmark_out_format=json\n"
    "  --benchmark_format=console|json|csv   on standard output\n"
    "  --benchmark_repetitions=N             with mean, median and deviation\n"
    "  --benchmark_min_time=SECONDS          of device time a benchmark (0.02 here)\n"
    "Names are <op>/<dtype>/<shape>/<cold|warm>: with operands in memory, or in the cache.";

std::string joined_names() {
  std::string names;
  for (const Op& op : ops()) names += (names.empty() ? "" : ", ") + op.name;
  return names;
}

std::string quoted(const std::string& word) {
  return word.find_first_of(" \t|*?$\"\\()[]<>;&") == std::string::npos && !word.empty() ? word : "'" + word + "'";
}

// Values for which Google Benchmark would print its help and exit with 0, measure nothing, or break off.
void check_flag(const std::string& word) {
  const size_t equals = std::min(word.find('='), word.size());
  const std::string flag = word.substr(0, equals), value = word.substr(std::min(equals + 1, word.size()));
  if (flag == "--benchmark_format" || flag == "--benchmark_out_format")
    DEMI_CHECK(value == "console" || value == "json" || value == "csv", "{}: console, json or csv", word);
  if (flag == "--benchmark_repetitions")
    DEMI_CHECK(std::regex_match(value, std::regex("0*[1-9][0-9]{0,5}")), "{}: a number from 1 to 999999", word);
  if (flag == "--benchmark_min_time") {
    char* end = nullptr;
    const double seconds = std::strtod(value.c_str(), &end);
    DEMI_CHECK(seconds > 0 && std::isfinite(seconds) && *end == 0, "{}: a number of seconds above 0", word);
  }
}

// Google Benchmark 1.8 takes 0.5s, 1.7 only 0.5; both take the latter.
std::string without_unit(const std::string& word) {
  return word.starts_with("--benchmark_min_time=") && word.ends_with('s') ? word.substr(0, word.size() - 1) : word;
}

// Google Benchmark's own rule: a minus in front means those that do not match. Its names end in /manual_time.
class Filter {
 public:
  explicit Filter(const std::string& text) : inverted_(text.starts_with('-')) {
    if (text.empty() || text == "all") return;
    try {
      expression_.emplace(text.substr(inverted_ ? 1 : 0), std::regex::ECMAScript);
    } catch (const std::regex_error&) {
      fail("--benchmark_filter={} is no regular expression", text);
    }
  }
  bool takes(const std::string& name) const {
    if (!expression_) return true;
    const bool found = std::regex_search(name, *expression_) || std::regex_search(name + "/manual_time", *expression_);
    return found != inverted_;
  }

 private:
  bool inverted_;
  std::optional<std::regex> expression_;
};

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& code) {
  Options o;
  std::string names, precisions;
  CLI::App app{kAbout};
  app.name("demi_bench");
  app.footer(kFooter);
  app.allow_extras();
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("demi_bench: {}; --help lists the flags\n", e.what());
  });
  app.add_option("--set", o.set, "default (ResNet-18), resnet50, sweep, odd, ladder, all, quick")
      ->capture_default_str();
  app.add_option("--ops", names, "with commas; all when left out");
  app.add_option("--dtypes", precisions, "fp32, tf32, fp16, bf16, with commas; all when left out");
  app.add_option("--shape", o.shape, "any shape instead of the set's, such as 256x32x32x64");
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_flag("--list", o.list, "print the names of what would be measured");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    code = app.exit(e) == 0 ? 0 : 1;
    return std::nullopt;
  }
  for (int i = 0; i < argc; ++i) o.command += (i == 0 ? "demi_bench" : " " + quoted(argv[i]));
  try {
    DEMI_CHECK(std::find(set_names().begin(), set_names().end(), o.set) != set_names().end(),
               "unknown set '{}': default, resnet50, sweep, odd, ladder, all or quick", o.set);
    if (!precisions.empty())
      for (const std::string& p : CLI::detail::split(precisions, ',')) o.precisions.push_back(precision_from_name(p));
    if (!names.empty()) o.ops = CLI::detail::split(names, ',');
    for (const std::string& name : o.ops) DEMI_CHECK(find_op(name), "unknown op '{}': {}", name, joined_names());
    DEMI_CHECK(o.shape.empty() || !o.ops.empty(), "--shape needs --ops: a shape is that of an op");
    o.remaining = {"demi_bench"};
    if (!std::getenv("BENCHMARK_MIN_TIME")) o.remaining.push_back("--benchmark_min_time=0.02");
    if (const char* filter = std::getenv("BENCHMARK_FILTER")) o.filter = filter;
    for (const std::string& given : app.remaining()) {
      const std::string word = without_unit(given);
      DEMI_CHECK(word.starts_with("--benchmark_") || word.starts_with("--v="),
                 "unknown argument {}; --help lists the flags", word);
      check_flag(word);
      constexpr std::string_view kFilter = "--benchmark_filter=";
      if (word.starts_with(kFilter))
        o.filter = word.substr(kFilter.size());
      else
        o.remaining.push_back(word);
    }
    o.remaining.push_back("--benchmark_filter=.");  // it is applied here: what gets registered is what is to run
  } catch (const Error& e) {
    fmt::print(stderr, "demi_bench: {}\n", e.what());
    code = 1;
    return std::nullopt;
  }
  return o;
}

std::vector<Case> select_cases(const Options& o, Device device, size_t cache_bytes) {
  const auto chosen = [](const auto& list, const auto& value) {
    return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
  };
  const Filter filter(o.filter);
  const auto cache = static_cast<double>(cache_bytes);
  std::vector<Case> cases;
  size_t unfiltered = 0;
  const auto add = [&](const Case& c) {
    ++unfiltered;
    if (filter.takes(c.name())) cases.push_back(c);
  };
  for (const Op& op : ops()) {
    if (!chosen(o.ops, op.name) || (op.cuda_only && device.is_cpu())) continue;
    const std::vector<SetShape> shapes =
        o.shape.empty() ? shapes_of(o.set, op, device) : std::vector<SetShape>{{o.shape}};
    for (const SetShape& shape : shapes) {
      for (const Precision precision : op.precisions) {
        if (!chosen(o.precisions, precision)) continue;
        if (precision == Precision::Tf32 && device.is_cpu()) continue;  // it is FP32 there
        const Request request{.op = op.name, .shape = shape.shape, .precision = precision, .device = device};
        const Spec spec = op.spec(request);
        const bool can_be_cold = device.is_cuda() && kColdFactor * cache / spec.bytes <= kMostSets;
        // Half of the cache: a card may keep two copies of what both of its halves read.
        const bool fits = spec.bytes <= cache / 2, asked = !o.shape.empty() || o.set == "sweep";
        if (can_be_cold) add({.request = request, .op = &op, .cold = true, .tensor_cores = spec.tensor_cores});
        if (!can_be_cold || asked || (shape.warm_too && fits))
          add({.request = request, .op = &op, .cold = false, .tensor_cores = spec.tensor_cores});
      }
    }
  }
  if (unfiltered == 0) {
    std::string asked;
    for (const Precision p : o.precisions) asked += (asked.empty() ? "" : ", ") + std::string(name_of(p));
    fail("nothing to measure: no op asked for exists in {} in the set '{}' on {}{}",
         asked.empty() ? "any dtype" : asked, o.set, device,
         device.is_cpu() ? " (tf32 and the ladders exist on CUDA only)" : "; tf32 is of products alone");
  }
  DEMI_CHECK(!cases.empty(), "--benchmark_filter={} matches none of {} benchmarks; --list shows them", o.filter,
             unfiltered);
  return cases;
}

}  // namespace demi::bench
