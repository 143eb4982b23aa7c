#include "demi/data/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "demi/core/memory.h"
#include "demi/core/parallel.h"
#include "demi/core/random.h"

namespace demi::data {
namespace {

constexpr int kClasses = 10, kSide = 32, kPlane = kSide * kSide;

// Every class looks the same mirrored left to right (up to the random tilt), so flips change no label.
enum Form { Disc, Ring, Square, Frame, Triangle, Cross, Star, Rows, Columns, Checker };
constexpr std::array<std::string_view, kClasses> kNames{"disc",  "ring", "square", "frame",   "triangle",
                                                        "cross", "star", "rows",   "columns", "checker"};

// The random numbers of one image, one after another.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t image) : seed_(seed), image_(image) {}
  uint32_t word() {
    if (next_ == 4) {
      block_ = Philox(seed_, image_, counter_++);
      next_ = 0;
    }
    return block_.word[next_++];
  }
  float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(word() >> 8) * 0x1p-24f); }

 private:
  uint64_t seed_, image_, counter_ = 0;
  Philox block_{0, 0, 0};
  int next_ = 4;
};

using Colour = std::array<float, 3>;

Colour random_colour(Draw& draw) { return {draw.uniform(0, 1), draw.uniform(0, 1), draw.uniform(0, 1)}; }

float distance(const Colour& a, const Colour& b) { return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]); }

float brightness(const Colour& c) { return 0.3f * c[0] + 0.6f * c[1] + 0.1f * c[2]; }

// A colour well apart from `other`.
Colour contrasting_colour(Draw& draw, const Colour& other) {
  Colour best = random_colour(draw);
  for (int tries = 0; tries < 8 && distance(best, other) < 0.5f; ++tries) {
    const Colour next = random_colour(draw);
    if (distance(next, other) > distance(best, other)) best = next;
  }
  return best;
}

// Background and foreground, the latter always the brighter one: forms of either polarity take a network long to see.
std::pair<Colour, Colour> random_pair(Draw& draw) {
  Colour dark = random_colour(draw), bright = random_colour(draw);
  for (int tries = 0; tries < 16 && std::abs(brightness(dark) - brightness(bright)) < 0.25f; ++tries)
    bright = random_colour(draw);
  if (brightness(dark) > brightness(bright)) std::swap(dark, bright);
  return {dark, bright};
}

// Signed distance, negative inside, of a regular polygon-like star with `points` tips: radius `outer` at the tips,
// `inner` between them. Exact enough within a pixel of the edge.
float star_distance(float x, float y, int points, float outer, float inner) {
  const float half = std::numbers::pi_v<float> / static_cast<float>(points);
  float angle = std::fmod(std::abs(std::atan2(x, -y)), 2 * half);  // from the tip that points up
  if (angle > half) angle = 2 * half - angle;
  const float r = std::hypot(x, y), px = r * std::cos(angle), py = r * std::sin(angle);
  const float ex = inner * std::cos(half) - outer, ey = inner * std::sin(half);
  return ((px - outer) * ey - py * ex) / std::hypot(ex, ey);
}

// Signed distance in pixels to the edge of a form of radius r at the origin; y points down. The textures fill a disc
// or a square of random choice, so that the outline tells nothing.
float form_distance(Form form, float x, float y, float r, float thickness, float period, float phase, bool round) {
  const float box = std::max(std::abs(x), std::abs(y)) - r * 0.85f, disc = std::hypot(x, y) - r;
  const float patch = round ? disc : box;
  const float k = 2 * std::numbers::pi_v<float> / period;
  switch (form) {
    case Disc:
      return disc;
    case Ring:
      return std::abs(disc + thickness / 2) - thickness / 2;
    case Square:
      return box;
    case Frame:
      return std::abs(box + thickness / 2) - thickness / 2;
    case Triangle:
      return star_distance(x, y - 0.15f * r, 3, 1.15f * r, 0.575f * r);
    case Cross: {
      const float a = std::abs(x), b = std::abs(y), width = thickness * 0.75f;
      return std::max(std::min(a, b) - width, std::max(a, b) - r);
    }
    case Star:
      return star_distance(x, y, 5, 1.1f * r, 0.46f * r);
    case Rows:
      return std::max(patch, std::sin(k * y + phase) / k);
    case Columns:
      return std::max(patch, std::sin(k * x + phase) / k);
    case Checker:
      return std::max(patch, std::sin(k * x + phase) * std::sin(k * y + phase) * 2 / k);
  }
  return disc;
}

float coverage(float signed_distance) { return std::clamp(0.5f - signed_distance, 0.0f, 1.0f); }

class Canvas {
 public:
  // A gradient from one colour to another close to it.
  Canvas(Draw& draw, const Colour& base) {
    const float gx = draw.uniform(-0.2f, 0.2f), gy = draw.uniform(-0.2f, 0.2f);
    for (int i = 0; i < kPlane; ++i) {
      const float t =
          gx * (static_cast<float>(i % kSide) / kSide - 0.5f) + gy * (static_cast<float>(i / kSide) / kSide - 0.5f);
      for (size_t c = 0; c < 3; ++c) pixel_[c][static_cast<size_t>(i)] = base[c] + t;
    }
  }

  template <typename F>
  void paint(const Colour& colour, F&& alpha) {
    for (int i = 0; i < kPlane; ++i) {
      const float a = alpha(static_cast<float>(i % kSide) + 0.5f, static_cast<float>(i / kSide) + 0.5f);
      if (a <= 0) continue;
      for (size_t c = 0; c < 3; ++c) {
        float& p = pixel_[c][static_cast<size_t>(i)];
        p += a * (colour[c] - p);
      }
    }
  }

  // Adds noise of a triangular distribution and rounds to bytes, plane after plane.
  void store(Draw& draw, float noise, uint8_t* out) const {
    const float scale = 255 * noise / 256;
    for (size_t c = 0; c < 3; ++c)
      for (size_t i = 0; i < kPlane; i += 2) {
        const uint32_t w = draw.word();
        for (size_t j = 0; j < 2; ++j) {
          const uint32_t half = w >> (16 * j);
          const float n = scale * static_cast<float>(static_cast<int>(half & 255) - static_cast<int>(half >> 8 & 255));
          *out++ = static_cast<uint8_t>(std::clamp(255 * pixel_[c][i + j] + n + 0.5f, 0.0f, 255.0f));
        }
      }
  }

 private:
  std::array<std::array<float, kPlane>, 3> pixel_;
};

// Bits of line and dots that mean nothing.
void paint_clutter(Draw& draw, Canvas& canvas, const Colour& background) {
  const int pieces = static_cast<int>(draw.word() % 4);
  for (int n = 0; n < pieces; ++n) {
    const Colour colour = contrasting_colour(draw, background);
    const float x0 = draw.uniform(0, kSide), y0 = draw.uniform(0, kSide), angle = draw.uniform(0, 6.2831853f);
    const float length = draw.uniform(0, 9), radius = draw.uniform(0.6f, 1.4f);
    const float dx = std::cos(angle), dy = std::sin(angle);
    canvas.paint(colour, [&](float x, float y) {
      const float t = std::clamp((x - x0) * dx + (y - y0) * dy, 0.0f, length);
      return coverage(std::hypot(x - x0 - t * dx, y - y0 - t * dy) - radius);
    });
  }
}

void draw_image(uint64_t seed, uint64_t image, Form form, uint8_t* out) {
  Draw draw(seed, image);
  const auto [background, foreground] = random_pair(draw);
  Canvas canvas(draw, background);
  paint_clutter(draw, canvas, background);

  const float r = draw.uniform(7, 11), tilt = draw.uniform(-0.26f, 0.26f);  // +-15 degrees
  const float cx = 16 + draw.uniform(-4, 4), cy = 16 + draw.uniform(-4, 4);
  const float thickness = draw.uniform(2.2f, 3.6f), period = draw.uniform(4.5f, 7), phase = draw.uniform(0, 6.2831853f);
  const bool round = draw.word() & 1;
  const float cosine = std::cos(tilt), sine = std::sin(tilt);
  canvas.paint(foreground, [&](float px, float py) {
    const float x = px - cx, y = py - cy;
    if (std::abs(x) > 1.6f * r || std::abs(y) > 1.6f * r) return 0.0f;
    return coverage(
        form_distance(form, cosine * x + sine * y, cosine * y - sine * x, r, thickness, period, phase, round));
  });
  canvas.store(draw, draw.uniform(0.05f, 0.25f), out);
}

// `first` numbers the images of both splits, so that they share none.
Records make_records(const SyntheticOptions& options, int64_t first, int64_t count) {
  const memory::Scope scope(memory::Category::Data);
  Records records{Tensor::empty({count, 3, kSide, kSide}, DType::U8), Tensor::empty({count}, DType::I64)};
  uint8_t* images = records.images.mutable_data<uint8_t>();
  int64_t* labels = records.labels.mutable_data<int64_t>();
  parallel_for(count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      labels[i] = i % kClasses;
      draw_image(options.seed, static_cast<uint64_t>(first + i), static_cast<Form>(i % kClasses),
                 images + i * 3 * kPlane);
    }
  });
  return records;
}

}  // namespace

Dataset make_synthetic(const SyntheticOptions& options) {
  DEMI_CHECK(options.train >= 0 && options.test >= 0, "[synthetic] cannot make {} training and {} test images",
             options.train, options.test);
  constexpr int64_t kTestOffset = int64_t{1} << 40;
  return {"synthetic", kClasses, make_records(options, 0, options.train),
          make_records(options, kTestOffset, options.test)};
}

std::string_view synthetic_class_name(int label) {
  DEMI_CHECK(label >= 0 && label < kClasses, "[synthetic] label {} is not in 0 to {}", label, kClasses - 1);
  return kNames[static_cast<size_t>(label)];
}

}  // namespace demi::data
