// Line charts as SVG text, for report.html and as files of their own. Colours follow the reader's light or dark
// setting.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace demi::examples {

struct Series {
  std::string name{};            // in the legend
  std::vector<double> x{}, y{};  // of one length; a y that is not finite leaves a gap
  int colour = 0;                // series of one run share it
  bool dashed = false;
};

struct Chart {
  std::string title{}, x_label{}, y_label{};  // a label carries its unit: "test accuracy [%]"
  std::vector<Series> series{};
  std::string y_format = "{:.4g}";          // of the values in tooltips
  bool log2_y = false;                      // powers of two; values must be positive
  std::optional<double> y_low{}, y_high{};  // else from the data
};

// A complete <svg> element, which is also a complete file.
std::string to_svg(const Chart& chart);

// Text as it must be written between tags and in attributes.
std::string escape_html(const std::string& text);

}  // namespace demi::examples
