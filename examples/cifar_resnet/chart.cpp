#include "demi/examples/cifar_resnet/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace demi::examples {
namespace {

constexpr double kWidth = 560, kHeight = 340, kLeft = 74, kRight = 16, kTop = 48, kBottom = 48, kKeyRow = 16;

constexpr const char* kStyle = R"(<style>
.demi-chart{--ink:#1f2430;--soft:#667085;--grid:#e4e7ec;--ground:#ffffff;--c0:#2563eb;--c1:#d9480f;--c2:#0f8a7e;--c3:#8b3fd1;background:var(--ground);font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media (prefers-color-scheme:dark){.demi-chart{--ink:#e6e9ef;--soft:#98a2b3;--grid:#2b313c;--ground:#151920;--c0:#7aa5ff;--c1:#ff9a5c;--c2:#4ecfc0;--c3:#c79bff}}
.demi-chart text{fill:var(--soft)}.demi-chart .title{fill:var(--ink);font-size:15px;font-weight:600}.demi-chart .key{fill:var(--ink)}
.demi-chart .grid{stroke:var(--grid)}.demi-chart .axis{stroke:var(--soft)}
.demi-chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.demi-chart .dashed{stroke-dasharray:5 4}
.demi-chart .hit{fill:transparent}.demi-chart .hit:hover{fill:var(--soft);fill-opacity:.35}
.demi-chart .s0{stroke:var(--c0)}.demi-chart .s1{stroke:var(--c1)}.demi-chart .s2{stroke:var(--c2)}.demi-chart .s3{stroke:var(--c3)}
.demi-chart .f0{fill:var(--c0)}.demi-chart .f1{fill:var(--c1)}.demi-chart .f2{fill:var(--c2)}.demi-chart .f3{fill:var(--c3)}
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

std::vector<Key> place_keys(const std::vector<Series>& series) {
  std::vector<Key> keys;
  double x = kLeft, y = kTop - 5;
  for (const Series& s : series) {
    const double width = 46 + 6.6 * static_cast<double>(s.name.size());
    if (x > kLeft && x + width > kWidth) {
      x = kLeft;
      y += kKeyRow;
    }
    keys.push_back({x, y});
    x += width;
  }
  return keys;
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
  const auto scaled = [&](double y) { return chart.log2_y ? (y > 0 ? std::log2(y) : std::nan("")) : y; };
  Range xs, ys;
  for (const Series& s : chart.series)
    for (size_t i = 0; i < s.y.size(); ++i)
      if (std::isfinite(scaled(s.y[i]))) {
        xs.add(s.x[i]);
        ys.add(scaled(s.y[i]));
      }
  const Axis x =
      make_axis(xs, 10, true, xs.empty() ? 0 : xs.low, xs.empty() || xs.low == xs.high ? xs.low + 1 : xs.high);
  const Axis y = make_axis(ys, 6, chart.log2_y, chart.y_low, chart.y_high);
  const std::vector<Key> keys = place_keys(chart.series);
  const double top = (keys.empty() ? kTop : keys.back().y) + 21;
  const double width = kWidth - kLeft - kRight, height = kHeight - top - kBottom;
  const auto px = [&](double v) { return kLeft + width * x.range.at(v); };
  const auto py = [&](double v) { return top + height * (1 - y.range.at(v)); };

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"demi-chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n{}\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"var(--ground)\"/>\n"
      "<text class=\"title\" x=\"{:.0f}\" y=\"24\">{}</text>\n",
      kWidth, kHeight, escape_html(chart.title), kStyle, kLeft, escape_html(chart.title));

  for (double v = std::ceil(y.range.low / y.step - 1e-9) * y.step; v <= y.range.high + y.step * 1e-6; v += y.step)
    out += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, kWidth - kRight, py(v), py(v), kLeft - 8, py(v) + 4, tick_text(v, y.step, chart.log2_y));
  for (double v = std::ceil(x.range.low / x.step - 1e-9) * x.step; v <= x.range.high + x.step * 1e-6; v += x.step)
    out += fmt::format(
        "<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        px(v), px(v), top + height, top + height + 4, px(v), top + height + 18, tick_text(v, x.step, false));
  out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft,
                     kWidth - kRight, top + height, top + height);
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", kLeft + width / 2,
                     kHeight - 10, escape_html(chart.x_label));
  out += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     top + height / 2, escape_html(chart.y_label));

  for (size_t i = 0; i < keys.size(); ++i) {
    const Series& s = chart.series[i];
    out += fmt::format("<line class=\"line s{}{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>",
                       s.colour % 4, s.dashed ? " dashed" : "", keys[i].x, keys[i].x + 22, keys[i].y, keys[i].y);
    out += fmt::format("<text class=\"key\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n", keys[i].x + 28, keys[i].y + 4,
                       escape_html(s.name));
  }

  std::string hits;
  for (const Series& s : chart.series) {
    std::string path;
    bool pen_down = false;
    for (size_t i = 0; i < s.y.size(); ++i) {
      const double v = scaled(s.y[i]);
      if (!std::isfinite(v)) {
        pen_down = false;
        continue;
      }
      const double cx = px(s.x[i]), cy = std::clamp(py(v), top, top + height);
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', cx, cy);
      const bool alone = !pen_down && (i + 1 == s.y.size() || !std::isfinite(scaled(s.y[i + 1])));
      if (alone)
        out += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", s.colour % 4, cx, cy);
      pen_down = true;
      hits += fmt::format(
          "<circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\"><title>{}, {} {:g}: {}</title></circle>\n", cx, cy,
          escape_html(s.name), escape_html(chart.x_label), s.x[i], fmt::format(fmt::runtime(chart.y_format), s.y[i]));
    }
    if (!path.empty())
      out += fmt::format("<path class=\"line s{}{}\" d=\"{}\"/>\n", s.colour % 4, s.dashed ? " dashed" : "", path);
  }
  return out + hits + "</svg>\n";
}

}  // namespace demi::examples
