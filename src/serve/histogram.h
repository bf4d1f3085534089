// Histogram counts the durations that do not exceed each of several bounds, as Prometheus does. The server's
// metrics use histograms for latencies.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace kvant {

class Histogram {
 public:
  // The bounds are inclusive and in seconds. A larger duration counts only in the total.
  static constexpr std::array<double, 14> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  5,     10,   60};

  void add(double seconds) {
    for (std::size_t i = 0; i < kBounds.size(); ++i) below_[i] += seconds <= kBounds[i] ? 1 : 0;
    ++count_;
    sum_ += seconds;
  }
  void add(std::chrono::duration<double> duration) { add(duration.count()); }

  std::int64_t at_most(std::size_t bound) const { return below_[bound]; }
  std::int64_t count() const { return count_; }
  double sum() const { return sum_; }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }

 private:
  std::array<std::int64_t, kBounds.size()> below_{};
  std::int64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace kvant
