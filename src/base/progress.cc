#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

constexpr double kFirstDrawSeconds = 1.0;
constexpr double kTerminalIntervalSeconds = 0.2;
constexpr double kPlainIntervalSeconds = 30.0;
constexpr int kBarColumns = 24;

std::string bar(double fraction) {
  const int filled = std::clamp(static_cast<int>(fraction * kBarColumns), 0, kBarColumns);
  return std::string(filled, '#') + std::string(kBarColumns - filled, '.');
}

}  // namespace

Progress::Progress(std::string label, std::int64_t total, std::string unit, std::FILE* out)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(std::max<std::int64_t>(total, 1)),
      out_(out),
      terminal_(isatty(fileno(out)) == 1),
      next_draw_s_(terminal_ ? kFirstDrawSeconds : kPlainIntervalSeconds),
      start_(Clock::now()) {}

Progress::~Progress() {
  clear();
}

void Progress::advance(std::int64_t n) {
  done_ += n;
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  if (elapsed < next_draw_s_ || done_ >= total_) return;
  next_draw_s_ = elapsed + (terminal_ ? kTerminalIntervalSeconds : kPlainIntervalSeconds);
  draw(elapsed);
}

void Progress::clear() {
  if (drawn_columns_ == 0) return;
  fmt::print(out_, "\r{:{}}\r", "", drawn_columns_);
  std::fflush(out_);
  drawn_columns_ = 0;
}

void Progress::draw(double elapsed_s) {
  const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
  const double left_s = done_ > 0 ? elapsed_s * (1.0 - fraction) / fraction : 0.0;
  const std::string state =
      fmt::format("{} / {} {}, {} left", done_, total_, unit_, readable_duration(left_s));
  if (!terminal_) {
    fmt::print(out_, "{}: {}\n", label_, state);
    std::fflush(out_);
    return;
  }
  const std::string line = fmt::format("{} [{}] {}", label_, bar(fraction), state);
  fmt::print(out_, "\r{:{}}", line, drawn_columns_);
  std::fflush(out_);
  drawn_columns_ = std::max(drawn_columns_, line.size());
}

std::string readable_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
}

std::string readable_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    bytes /= 1024;
    if (bytes < 1024) return fmt::format("{:.1f} {}", bytes, unit);
  }
  return fmt::format("{:.1f} TiB", bytes / 1024);
}

}  // namespace kvant
