#include "demi/bench/shapes.h"

#include <charconv>

namespace demi::bench {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 34;  // of one tensor

[[noreturn]] void refuse(const Request& request, Kind kind, const std::string& why) {
  fail("shape '{}' is impossible for {}: {}; such as {}", request.shape, request.op, why, example_of(kind));
}

int64_t extent(const Request& request, Kind kind, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    refuse(request, kind, fmt::format("'{}' is no positive whole number", text));
  return value;
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool strip_odd(std::string_view& text) {
  const bool odd = text.ends_with("_odd");
  if (odd) text.remove_suffix(4);
  return odd;
}

Shape dims(const Request& request, Kind kind, std::string_view text) {
  const std::vector<std::string_view> parts = split(text, 'x');
  if (parts.size() > Shape::kMaxRank) refuse(request, kind, fmt::format("at most {} extents", Shape::kMaxRank));
  Shape shape;
  int64_t elements = 1;
  for (const std::string_view part : parts) {
    const int64_t n = extent(request, kind, part);
    if (n > kMostElements / elements) refuse(request, kind, "over 2^34 elements");
    elements *= n;
    shape.append(n);
  }
  return shape;
}

void need_rank(const Request& request, Kind kind, const Shape& shape, int rank, const char* what) {
  if (shape.rank() != rank) refuse(request, kind, fmt::format("it takes {}", what));
}

}  // namespace

const char* example_of(Kind kind) {
  switch (kind) {
    case Kind::Elements:
    case Kind::Weights:
      return "16777216";
    case Kind::Rows:
    case Kind::Images:
      return "256x32x32x64";
    case Kind::Records:
      return "256x32x32x3";
    case Kind::Logits:
      return "256x10";
    case Kind::Matrix:
      return "8192x8192x8192";
    default:
      return "256x32x32x64_k128_r3_s2";
  }
}

Extents parse_extents(const Request& request, Kind kind) {
  std::string_view text = request.shape;
  Extents e;
  e.odd = strip_odd(text);
  // Of a product the three extents are not those of one tensor.
  if (kind == Kind::Matrix) {
    const std::vector<std::string_view> parts = split(text, 'x');
    if (parts.size() != 3) refuse(request, kind, "it takes m x n x k");
    for (const std::string_view part : parts) e.shape.append(extent(request, kind, part));
    for (const auto& [a, b] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 2}})
      if (e.shape[a] > kMostElements / e.shape[b]) refuse(request, kind, "over 2^34 elements");
    return e;
  }
  e.shape = dims(request, kind, text);
  switch (kind) {
    case Kind::Rows:
      if (e.shape.rank() < 2) refuse(request, kind, "it takes rows of channels, at least two extents");
      break;
    case Kind::Images:
      need_rank(request, kind, e.shape, 4, "N x H x W x C");
      break;
    case Kind::Records:
      need_rank(request, kind, e.shape, 4, "N x H x W x 3");
      if (e.shape[3] != 3) refuse(request, kind, "images of records have 3 channels");
      break;
    case Kind::Logits:
      need_rank(request, kind, e.shape, 2, "samples x classes");
      break;
    case Kind::Weights:
      need_rank(request, kind, e.shape, 1, "a number of weights");
      break;
    default:
      break;
  }
  return e;
}

Convolution parse_convolution(const Request& request) {
  constexpr Kind kind = Kind::Convolution;
  std::string_view text = request.shape;
  Convolution c;
  c.odd = strip_odd(text);
  const std::vector<std::string_view> parts = split(text, '_');
  if (parts.size() != 4 || !parts[1].starts_with('k') || !parts[2].starts_with('r') || !parts[3].starts_with('s'))
    refuse(request, kind, "it takes NxHxWxC_k<output channels>_r<kernel>_s<stride>");
  c.x = dims(request, kind, parts[0]);
  need_rank(request, kind, c.x, 4, "N x H x W x C before the first _");
  const int64_t k = extent(request, kind, parts[1].substr(1)), r = extent(request, kind, parts[2].substr(1));
  const int64_t stride = extent(request, kind, parts[3].substr(1));
  if (r > 1024) refuse(request, kind, "a kernel over 1024");
  if (k > kMostElements / (r * r) / c.x[3]) refuse(request, kind, "over 2^34 weights");
  c.w = Shape{k, r, r, c.x[3]};
  c.options.stride = {stride, stride};
  c.options.padding = {r / 2, r / 2};
  try {
    c.y = kernels::conv2d_shape(c.x, c.w, c.options);
  } catch (const Error& e) {
    refuse(request, kind, e.what());
  }
  if (c.y[0] * c.y[1] * c.y[2] > kMostElements / k) refuse(request, kind, "over 2^34 elements in its result");
  return c;
}

}  // namespace demi::bench
