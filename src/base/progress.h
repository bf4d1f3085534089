// Progress: how far a long operation is, and how long it will still take, on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace kvant {

// On a terminal: one line that is redrawn in place and cleared at the end. Elsewhere: a plain line now and
// then, so that logs stay short. An operation that ends within a second prints nothing.
class Progress {
 public:
  // label: "reading the prompt"; total and unit: "512 / 2048 tokens". total >= 0.
  Progress(std::string label, std::int64_t total, std::string unit, std::FILE* out = stderr);
  ~Progress();  // clears the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // n more units are done. The sum may not exceed total.
  void advance(std::int64_t n);
  // Clears the bar so that something else can be printed; the next advance() draws it again.
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

// "4 s", "3 min 05 s", "2 h 10 min": a duration in seconds for a person to read.
std::string readable_duration(double seconds);
// "940 B", "12.3 KiB", "4.0 GiB".
std::string readable_bytes(double bytes);

}  // namespace kvant
