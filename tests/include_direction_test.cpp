// Walks the includes of the tree and fails on one that points against the order of the folders.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

// A folder may include itself and those before it; tests/ and bench/ may include anything, and nothing includes them.
constexpr std::array<std::string_view, 9> kOrder = {"core", "kernels", "autograd", "optim",   "amp",
                                                    "nn",   "data",    "dist",     "examples"};

// Position in kOrder, or its size for a folder outside it.
std::size_t rank(std::string_view folder) {
  return static_cast<std::size_t>(std::ranges::find(kOrder, folder) - kOrder.begin());
}

bool is_source(const fs::path& path) {
  constexpr std::array<std::string_view, 4> kExtensions = {".h", ".cpp", ".cu", ".cuh"};
  return std::ranges::find(kExtensions, path.extension().string()) != kExtensions.end();
}

struct Findings {
  std::size_t includes = 0;             // includes of demi's own headers that were checked
  std::vector<std::string> violations;  // file:line: what is wrong
};

// The header that a line includes, with the bracket or quote before it; empty for other lines.
std::string included(std::string_view line) {
  const auto skip_spaces = [&] { line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size())); };
  for (const std::string_view word : {"#", "include"}) {
    skip_spaces();
    if (!line.starts_with(word)) return {};
    line.remove_prefix(word.size());
  }
  skip_spaces();
  return std::string(line.substr(0, line.find_first_of("\">", 1)));
}

Findings check_tree(const fs::path& root) {
  Findings findings;
  for (const std::string_view folder : kOrder) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      std::ifstream file(entry.path());
      std::string line;
      for (int number = 1; std::getline(file, line); ++number) {
        std::string header = included(line);
        if (header.empty()) continue;
        const bool quoted = header[0] == '"';
        header.erase(0, 1);
        const std::string where =
            fs::relative(entry.path(), root).generic_string() + ":" + std::to_string(number) + ": ";
        if (!header.starts_with("demi/")) {
          if (quoted) findings.violations.push_back(where + header + " is not spelled demi/<folder>/<file>.h");
          continue;
        }
        ++findings.includes;
        const std::string target = header.substr(5, header.find('/', 5) - 5);
        if (target == "demi.h" && folder == "examples") continue;  // the header of everything, for users
        if (rank(target) > rank(folder)) findings.violations.push_back(where + header + " points the wrong way");
        if (!fs::exists(root / header.substr(5))) findings.violations.push_back(where + header + " does not exist");
      }
    }
  }
  return findings;
}

TEST(IncludeDirection, TreeFollowsTheOrder) {
  const Findings findings = check_tree(DEMI_SOURCE_DIR);
  EXPECT_GT(findings.includes, 50u);
  for (const std::string& violation : findings.violations) ADD_FAILURE() << violation;
}

TEST(IncludeDirection, EveryKindOfViolationIsFound) {
  const fs::path root = fs::path(testing::TempDir()) / ("demi_include_direction_" + std::to_string(::getpid()));
  const auto write = [&](const fs::path& name, std::string_view text) {
    fs::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  };
  write("core/a.h", "#include <vector>\n");
  write("kernels/b.h", "#include \"demi/core/a.h\"\n");
  write("tests/t.h", "#include \"demi/kernels/b.h\"\n");
  EXPECT_EQ(check_tree(root).includes, 1u);
  EXPECT_TRUE(check_tree(root).violations.empty());

  write("core/cuda/bad.cu", "\n#include \"demi/kernels/b.h\"\n");  // upwards
  write("kernels/cpu/bad.cpp", "#  include <demi/tests/t.h>\n");   // a test's header
  write("nn/bad.cpp", "#include \"module.h\"\n");                  // not spelled with its folder
  write("optim/bad.cpp", "  #include \"demi/core/nowhere.h\"\n");  // no such file
  write("amp/bad.h", "#include \"demi/demi.h\"\n");                // the header of everything
  write("demi.h", "");
  std::vector<std::string> violations = check_tree(root).violations;
  std::ranges::sort(violations);
  const std::vector<std::string> expected = {
      "amp/bad.h:1: demi/demi.h points the wrong way",
      "core/cuda/bad.cu:2: demi/kernels/b.h points the wrong way",
      "kernels/cpu/bad.cpp:1: demi/tests/t.h points the wrong way",
      "nn/bad.cpp:1: module.h is not spelled demi/<folder>/<file>.h",
      "optim/bad.cpp:1: demi/core/nowhere.h does not exist",
  };
  EXPECT_EQ(violations, expected);
  fs::remove_all(root);
}

}  // namespace
