// Links in README.md and docs/ lead somewhere: to a file, and to a heading of it. Files named in `code` exist as well.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "files.h"

namespace demi::test {
namespace {

const fs::path kTop = DEMI_SOURCE_DIR;

std::vector<fs::path> pages() {
  std::vector<fs::path> all{kTop / "README.md"};
  for (const char* folder : {"docs", "examples"})
    for (const auto& entry : fs::recursive_directory_iterator(kTop / folder))
      if (entry.path().extension() == ".md") all.push_back(entry.path());
  return all;
}

// The page without its blocks of code.
std::string prose_of(const fs::path& page) {
  std::istringstream lines(read_file(page));
  std::string prose;
  bool code = false;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("```"))
      code = !code;
    else if (!code)
      prose += line + "\n";
  return prose;
}

// "## The scale, again" -> "the-scale-again", as GitHub and MkDocs name it.
std::set<std::string> anchors_of(const std::string& prose) {
  std::set<std::string> anchors;
  std::istringstream lines(prose);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) continue;
    std::string anchor;
    for (const char c : line.substr(line.find_first_not_of("# "))) {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      else if (c == ' ')
        anchor += '-';
    }
    anchors.insert(anchor);
  }
  return anchors;
}

std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> all;
  for (std::sregex_iterator m(text.begin(), text.end(), regex), end; m != end; ++m) all.push_back((*m)[1]);
  return all;
}

// What is wrong with a link on this page; empty: nothing.
std::string fault_of(const fs::path& page, const std::string& link) {
  if (link.starts_with("http://") || link.starts_with("https://")) return {};
  const size_t hash = std::min(link.find('#'), link.size());
  const fs::path file = hash == 0 ? page : page.parent_path() / link.substr(0, hash);
  if (!fs::exists(file)) return "no file " + link;
  if (hash < link.size() && !anchors_of(prose_of(file)).contains(link.substr(hash + 1))) return "no heading " + link;
  return {};
}

TEST(Links, LeadToFilesAndHeadings) {
  size_t links = 0;
  for (const fs::path& page : pages())
    for (const std::string& link : matches(prose_of(page), R"(\]\(([^)\s]+)\))")) {
      EXPECT_EQ(fault_of(page, link), "") << page;
      ++links;
    }
  EXPECT_GT(links, 20u);
  EXPECT_EQ(fault_of(kTop / "README.md", "docs/none.md"), "no file docs/none.md");
  EXPECT_EQ(fault_of(kTop / "README.md", "docs/learn/index.md#none"), "no heading docs/learn/index.md#none");
}

TEST(Links, FilesNamedInCodeExist) {
  size_t files = 0;
  for (const fs::path& page : pages())
    for (const std::string& name : matches(prose_of(page), R"(`([a-z0-9_]+/[a-z0-9_/]+\.(?:h|cpp|cu|cuh|md|py))`)")) {
      EXPECT_TRUE(fs::exists(kTop / name) || fs::exists(page.parent_path() / name)) << page << " names " << name;
      ++files;
    }
  EXPECT_GT(files, 20u);
}

}  // namespace
}  // namespace demi::test
