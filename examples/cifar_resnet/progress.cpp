#include "demi/examples/cifar_resnet/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace demi::examples {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kBar = 20;

bool can_redraw(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(out)) && term != nullptr && std::string_view(term) != "dumb";
}

size_t columns(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

std::string bar(double fraction) {
  const auto done = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * kBar);
  return std::string(done, '#') + std::string(kBar - done, '.');
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1000 ? fmt::format("{:.{}f} MiB", mib, mib < 10 ? 1 : 0) : fmt::format("{:.2f} GiB", mib / 1024);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto s = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Progress::Progress(int64_t epochs, int64_t done_epochs, std::FILE* out)
    : out_(out),
      terminal_(can_redraw(out)),
      epochs_(epochs),
      done_before_(done_epochs),
      loss_(kNaN),
      accuracy_(kNaN),
      start_(Clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (live_) std::fputs("\r\x1b[K", out_);
  live_ = false;
  std::fflush(out_);
}

void Progress::say(const std::string& line) {
  clear();
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

void Progress::start_epoch(int64_t epoch, int64_t batches) {
  epoch_ = epoch;
  batches_ = batches;
  epoch_start_ = drawn_ = Clock::now();
}

bool Progress::due() const { return seconds_between(drawn_, Clock::now()) >= (terminal_ ? 1 : 30); }

void Progress::step(int64_t batches_done, int64_t images_done) {
  if (!due()) return;
  const Clock::time_point now = drawn_ = Clock::now();
  const double in_epoch = static_cast<double>(batches_done) / static_cast<double>(std::max<int64_t>(batches_, 1));
  const double done = static_cast<double>(epoch_ - 1 - done_before_) + in_epoch;
  const double left = seconds_between(start_, now) * (static_cast<double>(epochs_ - done_before_) - done) / done;
  const std::string head = fmt::format("epoch {}/{}", epoch_, epochs_);
  std::string text = fmt::format("  {} left  {:.0f} images/s", format_duration(left),
                                 static_cast<double>(images_done) / seconds_between(epoch_start_, now));
  if (!std::isnan(loss_)) text += fmt::format("  loss {:.4f}", loss_);
  if (!std::isnan(accuracy_)) text += fmt::format("  test {:.2f} %", 100 * accuracy_);
  if (scale_ != 1) text += fmt::format("  scale {:g}", scale_);
  const bool room = terminal_ && head.size() + text.size() + kBar + 3 < columns(out_);
  draw(room ? fmt::format("{} [{}]{}", head, bar(in_epoch), text) : head + text);
}

void Progress::end_epoch(const EpochMetrics& m) {
  if (!std::isnan(m.test_accuracy)) accuracy_ = m.test_accuracy;
  loss_ = m.train_loss;
  scale_ = m.loss_scale;
  const auto digits = std::to_string(epochs_).size();
  std::string text = fmt::format("epoch {:>{}}/{}  loss {:.4f}", m.epoch, digits, epochs_, m.train_loss);
  text += std::isnan(m.test_accuracy)
              ? std::string("  test   not run")
              : fmt::format("  test {:5.2f} % (loss {:.4f})", 100 * m.test_accuracy, m.test_loss);
  text +=
      fmt::format("  {:.2f} s  {:.0f} images/s  peak {}", m.seconds, m.images_per_second, format_bytes(m.peak_bytes));
  if (m.loss_scale != 1 || m.skipped_steps > 0)
    text += fmt::format("  scale {:g}, {} skipped", m.loss_scale, m.skipped_steps);
  say(text + fmt::format("  lr {:.4g}", m.lr));
}

void Progress::draw(const std::string& text) {
  if (!terminal_) return say(text);
  fmt::print(out_, "\r{}\x1b[K", text.substr(0, columns(out_) - 1));
  std::fflush(out_);
  live_ = true;
}

}  // namespace demi::examples
