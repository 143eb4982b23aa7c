#include "demi/examples/common/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace demi::examples {
namespace {

constexpr double kWidth = 560, kHeight = 340, kLeft = 74, kRight = 22, kTop = 48, kBottom = 48, kKeyRow = 16;
constexpr int kColours = 6;

constexpr const char* kStyle = R"(<style>
.demi-chart{--ink:#1f2430;--soft:#667085;--grid:#e4e7ec;--ground:#ffffff;--c0:#2563eb;--c1:#d9480f;--c2:#0f8a7e;--c3:#8b3fd1;--c4:#b8860b;--c5:#d6336c;background:var(--ground);font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media (prefers-color-scheme:dark){.demi-chart{--ink:#e6e9ef;--soft:#98a2b3;--grid:#2b313c;--ground:#151920;--c0:#7aa5ff;--c1:#ff9a5c;--c2:#4ecfc0;--c3:#c79bff;--c4:#e5c04b;--c5:#ff8fb3}}
.demi-chart text{fill:var(--soft)}.demi-chart .title{fill:var(--ink);font-size:15px;font-weight:600}.demi-chart .key{fill:var(--ink)}
.demi-chart .grid{stroke:var(--grid)}.demi-chart .axis{stroke:var(--soft)}
.demi-chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.demi-chart .dashed{stroke-dasharray:5 4}
.demi-chart .hit{fill:transparent}.demi-chart .hit:hover{fill:var(--soft);fill-opacity:.35}
.demi-chart .s0{stroke:var(--c0)}.demi-chart .s1{stroke:var(--c1)}.demi-chart .s2{stroke:var(--c2)}.demi-chart .s3{stroke:var(--c3)}.demi-chart .s4{stroke:var(--c4)}.demi-chart .s5{stroke:var(--c5)}
.demi-chart .f0{fill:var(--c0)}.demi-chart .f1{fill:var(--c1)}.demi-chart .f2{fill:var(--c2)}.demi-chart .f3{fill:var(--c3)}.demi-chart .f4{fill:var(--c4)}.demi-chart .f5{fill:var(--c5)}
.demi-chart .band{fill:var(--soft);fill-opacity:.1}.demi-chart .b{stroke:var(--ground);stroke-width:.5}
</style>)";

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
  double at(double v) const { return (v - low) / (high - low); }  // 0 to 1
};

// A step of 1, 2 or 5 times a power of ten that divides `span` into at most `most` parts.
double nice_step(double span, int most) {
  const double rough = span / most, unit = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * unit >= rough * (1 - 1e-9)) return factor * unit;
  return 10 * unit;
}

// An axis: its range widened to whole steps, and where its ticks are.
struct Axis {
  Range range;
  double step = 1;
};

Axis make_axis(Range data, int most_ticks, bool whole, std::optional<double> low, std::optional<double> high) {
  if (data.empty()) data = {0, 1};
  if (low) data.low = *low;
  if (high) data.high = *high;
  if (!(data.high > data.low)) {  // one value: room on both sides
    const double pad = whole ? 1 : std::max(std::abs(data.low) * 0.1, 1e-6);
    data = {data.low - pad, data.low + pad};
  }
  double step = nice_step(data.high - data.low, most_ticks);
  if (whole) step = std::max(1.0, std::ceil(step));
  if (!low) data.low = std::floor(data.low / step + 1e-9) * step;
  if (!high) data.high = std::ceil(data.high / step - 1e-9) * step;
  return {data, step};
}

std::string tick_text(double v, double step, bool log2) {
  if (log2) return v >= 0 && v < 20 ? fmt::format("{:.0f}", std::exp2(v)) : fmt::format("2^{:.0f}", v);
  if (std::abs(v) < step * 1e-6) return "0";
  return fmt::format("{:.{}f}", v, std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9));
}

// Where each entry of the legend starts: in rows under the title.
struct Key {
  double x, y;
};

std::vector<Key> place_keys(const std::vector<std::string>& names) {
  std::vector<Key> keys;
  double x = kLeft, y = kTop - 5;
  for (const std::string& name : names) {
    const double width = 46 + 6.6 * static_cast<double>(name.size());
    if (x > kLeft && x + width > kWidth) {
      x = kLeft;
      y += kKeyRow;
    }
    keys.push_back({x, y});
    x += width;
  }
  return keys;
}

// What both kinds of chart draw in: title, axes, grid and bands, and the legend's entries, which the caller draws.
struct Frame {
  Axis x, y;
  std::vector<Key> keys;
  double top, width, height;

  Frame(Axis x_axis, Axis y_axis, const std::vector<std::string>& names, bool has_bands)
      : x(x_axis), y(y_axis), keys(place_keys(names)), width(kWidth - kLeft - kRight) {
    top = (keys.empty() ? kTop : keys.back().y) + (has_bands ? 28 : 21);  // room for the bands' names
    height = kHeight - top - kBottom;
  }
  double px(double v) const { return kLeft + width * x.range.at(v); }
  double py(double v) const { return top + height * (1 - y.range.at(v)); }
  double bottom() const { return top + height; }

  std::string open(const std::string& title) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"demi-chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
        "aria-label=\"{}\">\n{}\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"var(--ground)\"/>\n"
        "<text class=\"title\" x=\"{:.0f}\" y=\"24\">{}</text>\n",
        kWidth, kHeight, escape_html(title), kStyle, kLeft, escape_html(title));
  }
  std::string bands(const std::vector<Band>& all) const {
    std::string out;
    for (size_t i = 0; i < all.size(); ++i) {
      const double from = std::clamp(px(all[i].from), kLeft, kLeft + width),
                   to = std::clamp(px(all[i].to), kLeft, kLeft + width);
      if (to <= from) continue;
      if (i % 2 == 0)  // neighbours differ
        out += fmt::format("<rect class=\"band\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
                           from, top - 14, to - from, height + 14);
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", (from + to) / 2, top - 3,
                         escape_html(all[i].name));
    }
    return out;
  }
  std::string y_grid(bool log2) const {
    std::string out;
    for (double v = std::ceil(y.range.low / y.step - 1e-9) * y.step; v <= y.range.high + y.step * 1e-6; v += y.step)
      out += fmt::format(
          "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          kLeft, kWidth - kRight, py(v), py(v), kLeft - 8, py(v) + 4, tick_text(v, y.step, log2));
    return out;
  }
  std::string x_tick(double v, const std::string& text) const {
    return fmt::format(
        "<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        px(v), px(v), bottom(), bottom() + 4, px(v), bottom() + 18, text);
  }
  std::string axes(const std::string& x_label, const std::string& y_label) const {
    return fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft,
                       kWidth - kRight, bottom(), bottom()) +
           fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", kLeft + width / 2,
                       kHeight - 10, escape_html(x_label)) +
           fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                       top + height / 2, escape_html(y_label));
  }
  std::string key_text(size_t i, const std::string& name) const {
    return fmt::format("<text class=\"key\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n", keys[i].x + 28, keys[i].y + 4,
                       escape_html(name));
  }
};

template <typename All>
std::vector<std::string> names_of(const All& series) {
  std::vector<std::string> names;
  for (const auto& s : series) names.push_back(s.name);
  return names;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string to_svg(const Chart& chart) {
  const auto scaled = [](double v, bool log2) { return !log2 ? v : v > 0 ? std::log2(v) : std::nan(""); };
  const auto sx = [&](double v) { return scaled(v, chart.log2_x); };
  const auto sy = [&](double v) { return scaled(v, chart.log2_y); };
  Range xs, ys;
  for (const Series& s : chart.series)
    for (size_t i = 0; i < s.y.size(); ++i)
      if (std::isfinite(sy(s.y[i])) && std::isfinite(sx(s.x[i]))) {
        xs.add(sx(s.x[i]));
        ys.add(sy(s.y[i]));
      }
  const Frame frame(
      make_axis(xs, 10, true, xs.empty() ? 0 : xs.low, xs.empty() || xs.low == xs.high ? xs.low + 1 : xs.high),
      make_axis(ys, 6, chart.log2_y, chart.y_low, chart.y_high), names_of(chart.series), !chart.bands.empty());
  const Axis& x = frame.x;

  std::vector<Band> bands = chart.bands;
  for (Band& band : bands) {
    band.from = sx(band.from);
    band.to = sx(band.to);
  }
  std::string out = frame.open(chart.title) + frame.bands(bands) + frame.y_grid(chart.log2_y);
  for (double v = std::ceil(x.range.low / x.step - 1e-9) * x.step; v <= x.range.high + x.step * 1e-6; v += x.step)
    out += frame.x_tick(v, tick_text(v, x.step, chart.log2_x));
  out += frame.axes(chart.x_label, chart.y_label);

  for (size_t i = 0; i < frame.keys.size(); ++i) {
    const Series& s = chart.series[i];
    const Key& key = frame.keys[i];
    out += fmt::format("<line class=\"line s{}{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>",
                       s.colour % kColours, s.dashed ? " dashed" : "", key.x, key.x + 22, key.y, key.y);
    out += frame.key_text(i, s.name);
  }

  std::string hits;
  for (const Series& s : chart.series) {
    std::string path;
    bool pen_down = false;
    for (size_t i = 0; i < s.y.size(); ++i) {
      const double v = sy(s.y[i]);
      if (!std::isfinite(v) || !std::isfinite(sx(s.x[i]))) {
        pen_down = false;
        continue;
      }
      const double cx = frame.px(sx(s.x[i])), cy = std::clamp(frame.py(v), frame.top, frame.bottom());
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', cx, cy);
      const bool alone = !pen_down && (i + 1 == s.y.size() || !std::isfinite(sy(s.y[i + 1])));
      if (alone)
        out +=
            fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", s.colour % kColours, cx, cy);
      pen_down = true;
      hits += fmt::format(
          "<circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\"><title>{}, {} {:g}: {}</title></circle>\n", cx, cy,
          escape_html(s.name), escape_html(chart.x_label), s.x[i], fmt::format(fmt::runtime(chart.y_format), s.y[i]));
    }
    if (!path.empty())
      out +=
          fmt::format("<path class=\"line s{}{}\" d=\"{}\"/>\n", s.colour % kColours, s.dashed ? " dashed" : "", path);
  }
  return out + hits + "</svg>\n";
}

std::string to_svg(const BarChart& chart) {
  const size_t groups = chart.groups.size(), bars = chart.stacked ? 1 : std::max<size_t>(chart.series.size(), 1);
  Range ys{0, 0};
  for (size_t g = 0; g < groups; ++g) {
    double sum = 0;
    for (const Bars& s : chart.series) {
      if (g >= s.values.size() || !std::isfinite(s.values[g])) continue;
      sum = chart.stacked ? sum + s.values[g] : s.values[g];
      ys.add(sum);
    }
  }
  const Frame frame({{-0.5, std::max(static_cast<double>(groups), 1.0) - 0.5}, 1},
                    make_axis(ys, 6, false, 0.0, chart.y_high), names_of(chart.series), !chart.bands.empty());
  std::string out = frame.open(chart.title) + frame.bands(chart.bands) + frame.y_grid(false);
  for (size_t g = 0; g < groups; ++g)
    if (!chart.groups[g].empty()) out += frame.x_tick(static_cast<double>(g), escape_html(chart.groups[g]));

  for (size_t i = 0; i < frame.keys.size(); ++i)
    out += fmt::format("<rect class=\"f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"22\" height=\"9\" rx=\"2\"/>",
                       chart.series[i].colour % kColours, frame.keys[i].x, frame.keys[i].y - 5) +
           frame.key_text(i, chart.series[i].name);

  const double share = 0.84 / static_cast<double>(bars);  // of a group's width, for one bar
  for (size_t g = 0; g < groups; ++g) {
    double base = 0;
    for (size_t i = 0; i < chart.series.size(); ++i) {
      const Bars& s = chart.series[i];
      if (g >= s.values.size() || !(s.values[g] > 0) || !std::isfinite(s.values[g])) continue;
      const double left = static_cast<double>(g) - 0.42 + share * (chart.stacked ? 0 : static_cast<double>(i));
      const double low = frame.py(base), high = std::max(frame.py(base + s.values[g]), frame.top);
      out += fmt::format(
          "<rect class=\"b f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}, {}: "
          "{}</title></rect>\n",
          s.colour % kColours, frame.px(left), high, frame.px(left + share) - frame.px(left), low - high,
          escape_html(s.name), escape_html(g < chart.tooltips.size() ? chart.tooltips[g] : chart.groups[g]),
          fmt::format(fmt::runtime(chart.y_format), s.values[g]));
      if (chart.stacked) base += s.values[g];
    }
  }
  return out + frame.axes(chart.x_label, chart.y_label) + "</svg>\n";
}

}  // namespace demi::examples
