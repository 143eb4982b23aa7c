// How the command line of cifar_resnet reads and what it answers, whatever the flags are: help in two columns, checks
// of values that say in one line what would be right, and what a flag that nothing takes was meant to be.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

namespace demi::examples {

// Name and value, then what it does, broken at 100 characters.
class Help : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool) const override;
  std::string make_usage(const CLI::App*, std::string name) const override;
  std::string make_group(std::string name, bool positional, std::vector<const CLI::Option*> options) const override;
};

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Numbers from low to high, or above low; NaN is not among them. (CLI11's own ranges let it through.)
CLI::Validator range(double low, double high, bool whole, bool above = false);
inline CLI::Validator count(double high = kNoLimit) { return range(1, high, true); }
inline CLI::Validator at_least_zero() { return range(0, kNoLimit, false); }
inline CLI::Validator share() { return range(0, 1, false); }

// An empty value is most often a shell variable that was not set.
CLI::Validator not_empty();

CLI::Validator one_of(std::vector<std::string> names);

// Names the flag that nothing takes (CLI11 lists all that is left, from the back), and the known one that begins most
// alike.
std::string unknown_argument(const CLI::App& app);

}  // namespace demi::examples
