#include "demi/examples/cifar_resnet/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace demi::examples {

std::string Help::make_option(const CLI::Option* option, bool) const {
  constexpr size_t kColumn = 27, kWidth = 100;
  std::string line = "  " + option->get_name();
  // Checks write their rule behind the value's name; the description says it better.
  if (option->get_type_size() > 0) line += " " + option->get_type_name().substr(0, option->get_type_name().find(':'));
  std::string text = option->get_description();
  if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
  std::string out;
  for (const std::string& word : CLI::detail::split(text, ' ')) {
    if (line.size() < kColumn) line.append(kColumn - line.size(), ' ');
    if (line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line.assign(kColumn, ' ');
    }
    line += " " + word;
  }
  return out + line + "\n";
}

std::string Help::make_usage(const CLI::App*, std::string name) const { return "\nUsage: " + name + " [flags]\n\n"; }

std::string Help::make_group(std::string name, bool positional, std::vector<const CLI::Option*> options) const {
  std::string out = name + ":\n";
  for (const CLI::Option* option : options) out += make_option(option, positional);
  return out;
}

CLI::Validator range(double low, double high, bool whole, bool above) {
  std::string rule = fmt::format("a {}number ", whole ? "whole " : "");
  rule += std::isinf(high) ? fmt::format("{} {}", above ? "above" : "of at least", low)
          : above          ? fmt::format("above {} and at most {}", low, high)
                           : fmt::format("from {} to {}", low, high);
  return {[=](std::string& text) {
            double value = 0;
            int64_t integer = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value <= high &&
                              (above ? value > low : value >= low) &&
                              (!whole || (std::abs(value) < 0x1p62 && CLI::detail::lexical_cast(text, integer)));
            return good ? std::string() : fmt::format("'{}' is not {}", text, rule);
          },
          ""};
}

CLI::Validator not_empty() {
  return {[](std::string& text) { return text.empty() ? std::string("the value is empty") : std::string(); }, ""};
}

CLI::Validator one_of(std::vector<std::string> names) {
  return {[names = std::move(names)](std::string& text) {
            if (std::find(names.begin(), names.end(), text) != names.end()) return std::string();
            return fmt::format("'{}' is none of {}", text, CLI::detail::join(names, ", "));
          },
          ""};
}

std::string unknown_argument(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining();
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& s) { return s.starts_with("-"); });
  if (flag == left.end()) return fmt::format("unknown argument {}", left.back());
  const std::string name = flag->substr(0, flag->find('='));
  std::string meant;
  size_t alike = 4;  // two dashes and two letters say too little
  for (const CLI::Option* option : app.get_options()) {
    const std::string known = option->get_name();
    const auto end = std::mismatch(name.begin(), name.end(), known.begin(), known.end()).first;
    const auto length = static_cast<size_t>(end - name.begin());
    if (length > alike) meant = known, alike = length;
  }
  return fmt::format("unknown flag {}{}", name, meant.empty() ? "" : "; did you mean " + meant);
}

}  // namespace demi::examples
