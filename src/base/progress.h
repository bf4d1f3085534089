// Progress shows on stderr how much of a long operation is done and how much time is left. Commands use a
// Progress for prompts, evaluations and calibration.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace kvant {

// On a terminal the bar redraws one line in place and clears it at the end. Elsewhere a plain line appears
// now and then, which keeps logs short. An operation that ends within a second prints nothing.
class Progress {
 public:
  // Begins an operation of `total` >= 0 units. For example, `label` is "reading the prompt", and 2048 and
  // "tokens" make the bar show "512 / 2048 tokens".
  Progress(std::string label, std::int64_t total, std::string unit, std::FILE* out = stderr);
  ~Progress();  // clears the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Reports n more completed units. The sum of all n may not exceed `total`.
  void advance(std::int64_t n);
  // Clears the bar so the caller can print something else. The next advance() draws the bar again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(double elapsed_s);

  std::string label_;
  std::string unit_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  std::FILE* out_;
  bool terminal_;
  std::size_t drawn_columns_ = 0;
  double next_draw_s_;
  Clock::time_point start_;
};

// Formats a duration for people, such as "4 s", "3 min 05 s" or "2 h 10 min".
std::string readable_duration(double seconds);
// Formats a size for people, such as "940 B", "12.3 KiB" or "4.0 GiB".
std::string readable_bytes(double bytes);

}  // namespace kvant
