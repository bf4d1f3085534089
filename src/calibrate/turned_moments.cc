#include "calibrate/turned_moments.h"

#include <cmath>
#include <complex>
#include <cstddef>
#include <numbers>

namespace kvant {
namespace {

// A pair of channels as a complex number, which turns by `angle` a token; or one that stands still.
struct Component {
  int real;
  int imaginary;  // -1: always 0
  double angle;
};

std::vector<Component> components_of(std::span<const ChannelTurn> turns, int d) {
  std::vector<Component> all;
  std::vector<bool> turns_around(d, false);
  for (const ChannelTurn& turn : turns) {
    all.push_back(
        {turn.first, turn.second, std::ldexp(static_cast<double>(turn.step), -64) * 2 * std::numbers::pi});
    turns_around[turn.first] = turns_around[turn.second] = true;
  }
  for (int i = 0; i < d; ++i)
    if (!turns_around[i]) all.push_back({i, -1, 0});
  return all;
}

// The mean of e^(i angle p) over p = 0 .. n - 1: Dirichlet's kernel.
std::complex<double> mean_turn(double angle, int n) {
  const double half = std::sin(angle / 2);
  if (std::abs(half) < 1e-12) return 1;
  return std::polar(std::sin(n * angle / 2) / (n * half), angle * (n - 1) / 2);
}

}  // namespace

std::vector<double> turned_moments(std::span<const double> moments, std::span<const ChannelTurn> turns, int d,
                                   int n_positions) {
  const std::vector<Component> components = components_of(turns, d);
  std::vector<double> mean(static_cast<std::size_t>(d) * d, 0.0);
  const auto moment = [&](int i, int j) {
    return i < 0 || j < 0 ? 0.0 : moments[static_cast<std::size_t>(i) * d + j];
  };
  const auto set = [&](int i, int j, double value) {
    if (i >= 0 && j >= 0) mean[static_cast<std::size_t>(i) * d + j] = value;
  };
  for (const Component& a : components) {
    for (const Component& b : components) {
      const double xx = moment(a.real, b.real), yy = moment(a.imaginary, b.imaginary);
      const double xy = moment(a.real, b.imaginary), yx = moment(a.imaginary, b.real);
      // E[a conj(b)] and E[a b] turn by the difference and by the sum of the angles.
      const auto differing =
          std::complex<double>(xx + yy, yx - xy) * mean_turn(a.angle - b.angle, n_positions);
      const auto adding = std::complex<double>(xx - yy, yx + xy) * mean_turn(a.angle + b.angle, n_positions);
      set(a.real, b.real, (differing.real() + adding.real()) / 2);
      set(a.imaginary, b.imaginary, (differing.real() - adding.real()) / 2);
      set(a.real, b.imaginary, (adding.imag() - differing.imag()) / 2);
      set(a.imaginary, b.real, (adding.imag() + differing.imag()) / 2);
    }
  }
  return mean;
}

}  // namespace kvant
