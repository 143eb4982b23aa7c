// Line and bar charts as SVG text, for pages and as files of their own. Colours follow the reader's light or dark
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

// A part of the x axis, shaded and named at its top: a range of numbers, a phase of training.
struct Band {
  std::string name{};
  double from = 0, to = 0;  // as x is given; what lies outside of the chart is left out
};

struct Chart {
  std::string title{}, x_label{}, y_label{};  // a label carries its unit: "test accuracy [%]"
  std::vector<Series> series{};
  std::string y_format = "{:.4g}";          // of the values in tooltips
  bool log2_y = false;                      // powers of two; values must be positive
  std::optional<double> y_low{}, y_high{};  // else from the data
  bool log2_x = false;                      // likewise for x
  std::vector<Band> bands{};
};

// Groups of bars, one bar a series in each: side by side, or stacked on each other.
struct Bars {
  std::string name{};            // in the legend
  std::vector<double> values{};  // one a group, not negative; one that is not finite is left out
  int colour = 0;
};

struct BarChart {
  std::string title{}, x_label{}, y_label{};
  std::vector<std::string> groups{};  // under each group; "" for none
  std::vector<Bars> series{};
  bool stacked = false;
  std::string y_format = "{:.4g}";
  std::optional<double> y_high{};       // else from the data; the axis starts at 0
  std::vector<Band> bands{};            // group i reaches from i - 0.5 to i + 0.5
  std::vector<std::string> tooltips{};  // of each group where its label does not say enough; empty: the labels
};

// A complete <svg> element, which is also a complete file.
std::string to_svg(const Chart& chart);
std::string to_svg(const BarChart& chart);

// Text as it must be written between tags and in attributes.
std::string escape_html(const std::string& text);

}  // namespace demi::examples
