// What an Inspector saw, as a table and as JSON.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "demi/amp/inspect.h"

namespace demi::amp {
namespace {

using kernels::ValueCounts;

std::string dtypes_of(const Inspector::Operation& o) {
  std::string text;
  for (const DType d : o.inputs) text += fmt::format("{}{}", text.empty() ? "" : " ", d);
  return text + fmt::format(" > {}", o.output);
}

std::string percent(int64_t part, int64_t whole) {
  if (part == 0) return "0";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 0.01 ? "<0.01 %" : fmt::format("{:.2f} %", share);
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Columns of the histogram, by exponent, so that a glance tells what FP16 can hold: what it loses, its subnormals, its
// normal numbers, what it cannot reach.
struct Column {
  int first, last;
};
constexpr std::array<Column, 10> kColumns{
    {{-149, -25}, {-24, -20}, {-19, -15}, {-14, -10}, {-9, -5}, {-4, 0}, {1, 5}, {6, 10}, {11, 15}, {16, 127}}};
constexpr std::array<size_t, 3> kBars{1, 3, 9};  // columns that a bar stands before

std::string histogram(const ValueCounts& counts) {
  constexpr std::array<const char*, 9> levels{"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::array<int64_t, kColumns.size()> sums{};
  for (size_t c = 0; c < kColumns.size(); ++c)
    for (int e = kColumns[c].first; e <= kColumns[c].last; ++e)
      sums[c] += counts.exponents[static_cast<size_t>(e - ValueCounts::kLowest)];
  const int64_t most = std::max<int64_t>(1, *std::max_element(sums.begin(), sums.end()));
  std::string text;
  for (size_t c = 0; c < kColumns.size(); ++c) {
    if (std::find(kBars.begin(), kBars.end(), c) != kBars.end()) text += "|";
    text += levels[static_cast<size_t>(sums[c] == 0 ? 0 : 1 + sums[c] * 7 / most)];
  }
  return text;
}

std::string gradient_columns(DType dtype, const ValueCounts& c) {
  const int64_t all = c.values();
  return fmt::format("  {:<5} {:>8} {:>8} {:>9} {:>8}  {}", name_of(dtype), percent(c.zero(), all),
                     percent(c.kinds[ValueCounts::Fp16Zero], all), percent(c.kinds[ValueCounts::Fp16Subnormal], all),
                     percent(c.kinds[ValueCounts::Fp16Overflow] + c.non_finite(), all), histogram(c));
}

nlohmann::ordered_json gradient_json(DType dtype, const ValueCounts& c) {
  nlohmann::ordered_json exponents = nlohmann::ordered_json::object();
  for (size_t i = 0; i < c.exponents.size(); ++i)
    if (c.exponents[i] > 0) exponents[std::to_string(static_cast<int>(i) + ValueCounts::kLowest)] = c.exponents[i];
  return {{"dtype", name_of(dtype)},
          {"values", c.values()},
          {"zero", c.zero()},
          {"fp16_zero", c.kinds[ValueCounts::Fp16Zero]},
          {"fp16_subnormal", c.kinds[ValueCounts::Fp16Subnormal]},
          {"fp16_overflow", c.kinds[ValueCounts::Fp16Overflow]},
          {"infinite", c.kinds[ValueCounts::Infinite]},
          {"nan", c.kinds[ValueCounts::NaN]},
          {"exponents", std::move(exponents)}};
}

// Of all gradients of activations, or of all of weights.
ValueCounts total(const std::vector<Inspector::Operation>& all, ValueCounts Inspector::Operation::*which) {
  ValueCounts sum;
  for (const auto& o : all) sum += o.*which;
  return sum;
}

std::string summary(const char* name, const ValueCounts& c) {
  return fmt::format("{}: {} values, {} zero, {} lost, {} subnormal, {} overflow in FP16\n", name, c.values(),
                     percent(c.zero(), c.values()), percent(c.kinds[ValueCounts::Fp16Zero], c.values()),
                     percent(c.kinds[ValueCounts::Fp16Subnormal], c.values()),
                     percent(c.kinds[ValueCounts::Fp16Overflow] + c.non_finite(), c.values()));
}

}  // namespace

std::string Inspector::table() const {
  const std::vector<Operation> all = operations();
  size_t layer_width = 5, op_width = 9, dtypes_width = 13;
  for (const Operation& o : all) {
    layer_width = std::max(layer_width, o.layer.size());
    op_width = std::max(op_width, o.op.size());
    dtypes_width = std::max(dtypes_width, dtypes_of(o).size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:<14} {:<9}  {:<5} {:>8} {:>8} {:>9} {:>8}  {}\n", "layer",
                                 layer_width, "operation", op_width, "reads > gives", dtypes_width, "casts", "copies",
                                 "grad", "zero", "lost", "subnormal", "overflow", "exponents");
  Operation sum;
  for (const Operation& o : all) {
    const std::string casts = o.casts == 0 ? "-" : fmt::format("{} ({})", o.casts, bytes_text(o.cast_bytes));
    const std::string copies = o.copies_made > 0   ? fmt::format("{} made", o.copies_made)
                               : o.copies_used > 0 ? fmt::format("{} used", o.copies_used)
                                                   : "-";
    text += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:<14} {:<9}", o.layer, layer_width, o.op, op_width, dtypes_of(o),
                        dtypes_width, casts, copies);
    if (o.gradient_dtype) text += gradient_columns(*o.gradient_dtype, o.gradient);
    text += "\n";
    if (o.weight_gradient_dtype)
      text += fmt::format("{:<{}}  {:<{}}{}\n", "", layer_width, "  its parameters' gradient",
                          op_width + dtypes_width + 28, gradient_columns(*o.weight_gradient_dtype, o.weight_gradient));
    sum.casts += o.casts;
    sum.cast_bytes += o.cast_bytes;
    sum.copies_used += o.copies_used;
    sum.copies_made += o.copies_made;
  }
  text += fmt::format(
      "\nzero: exactly 0. lost: not 0, but 0 in FP16. subnormal: below 2^-14, with fewer bits. overflow: beyond 65504, "
      "infinite or NaN.\nexponents of the values as they are stored: below 2^-24 | FP16's subnormals | its normal "
      "numbers, below 2^16 | beyond\n");
  text += fmt::format("casts: {} ({}); compute copies: {} used, {} made\n", sum.casts, bytes_text(sum.cast_bytes),
                      sum.copies_used, sum.copies_made);
  text += summary("gradients of activations", total(all, &Operation::gradient));
  text += summary("gradients of parameters", total(all, &Operation::weight_gradient));
  const auto bad = first_non_finite();
  text += bad ? fmt::format("first value that is not finite: {} of {} in {}, {}\n", bad->what, bad->op, bad->layer,
                            bad->in_backward ? "backward" : "forward")
              : "every value was finite\n";
  return text;
}

std::string Inspector::json() const {
  nlohmann::ordered_json root;
  auto& list = root["operations"] = nlohmann::ordered_json::array();
  for (const Operation& o : operations()) {
    nlohmann::ordered_json one{{"layer", o.layer}, {"op", o.op}, {"inputs", nlohmann::ordered_json::array()}};
    for (const DType d : o.inputs) one["inputs"].push_back(name_of(d));
    one["output"] = name_of(o.output);
    one["calls"] = o.calls;
    one["casts"] = o.casts;
    one["cast_bytes"] = o.cast_bytes;
    one["copies_used"] = o.copies_used;
    one["copies_made"] = o.copies_made;
    if (o.gradient_dtype) one["gradient"] = gradient_json(*o.gradient_dtype, o.gradient);
    if (o.weight_gradient_dtype) one["parameter_gradient"] = gradient_json(*o.weight_gradient_dtype, o.weight_gradient);
    list.push_back(std::move(one));
  }
  const auto bad = first_non_finite();
  root["first_non_finite"] = nullptr;
  if (bad)
    root["first_non_finite"] = {{"layer", bad->layer},
                                {"op", bad->op},
                                {"direction", bad->in_backward ? "backward" : "forward"},
                                {"what", bad->what}};
  return root.dump(2);
}

}  // namespace demi::amp
