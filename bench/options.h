// demi_bench's command line: its own flags, and Google Benchmark's, which are passed on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/bench/harness.h"

namespace demi::bench {

struct Options {
  std::string device = "auto", set = "default", shape;  // shape: one for all ops chosen, instead of the set's
  std::vector<std::string> ops;                         // empty: all
  std::vector<Precision> precisions;                    // empty: all
  bool list = false;
  std::string filter;                  // Google Benchmark's regular expression; empty: everything
  std::vector<std::string> remaining;  // for Google Benchmark, the program's name first
  std::string command;                 // as it was given
};
// Nothing where the program has to end with `code`: after --help, or with what is wrong said on stderr.
std::optional<Options> parse_options(int argc, char** argv, int& code);

// The benchmarks that the options ask for. Throws Error, in one line, where an op or a set's shape does not exist or
// nothing is left.
std::vector<Case> select_cases(const Options& options, Device device, size_t cache_bytes);

}  // namespace demi::bench
