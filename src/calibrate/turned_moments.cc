#include "calibrate/turned_moments.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/page_size.h"

namespace kvant {
namespace {

// Returns the weighted means of e^(i angle x) over distances x, counted from 0.
std::vector<std::complex<double>> mean_phases(const std::vector<double>& angles,
                                              std::span<const double> weights) {
  const std::size_t n = angles.size();
  std::vector<double> real(n, 1.0), imaginary(n, 0.0), cosine(n), sine(n), sum_real(n, 0.0),
      sum_imaginary(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    cosine[i] = std::cos(angles[i]);
    sine[i] = std::sin(angles[i]);
  }
  double all = 0;
  for (const double weight : weights) {
    all += weight;
    for (std::size_t i = 0; i < n; ++i) {
      sum_real[i] += weight * real[i];
      sum_imaginary[i] += weight * imaginary[i];
      const double turned = real[i] * cosine[i] - imaginary[i] * sine[i];
      imaginary[i] = real[i] * sine[i] + imaginary[i] * cosine[i];
      real[i] = turned;
    }
  }
  std::vector<std::complex<double>> means;
  for (std::size_t i = 0; i < n; ++i) means.emplace_back(sum_real[i] / all, sum_imaginary[i] / all);
  return means;
}

}  // namespace

std::vector<double> reading_weights(int n_positions) {
  std::vector<double> weights(std::max(n_positions, kPageTokens / 2 + 1), 0.0);
  const auto n = static_cast<double>(weights.size());
  for (std::size_t x = kPageTokens / 2; x < weights.size(); ++x)
    weights[x] = (n - static_cast<double>(x)) / std::pow(static_cast<double>(x), 1.5);
  return weights;
}

MeanTurn::MeanTurn(std::span<const ChannelTurn> turns, int d, std::span<const double> weights) : d_(d) {
  std::vector<bool> turns_around(d, false);
  for (const ChannelTurn& turn : turns) {
    const double whole = std::ldexp(static_cast<double>(static_cast<std::int64_t>(turn.step)), -64);
    components_.push_back({turn.first, turn.second, whole * 2 * std::numbers::pi});
    turns_around[turn.first] = turns_around[turn.second] = true;
  }
  for (int i = 0; i < d; ++i)
    if (!turns_around[i]) components_.push_back({i, -1, 0});
  std::vector<double> differing, adding;
  for (const Component& a : components_) {
    for (const Component& b : components_) {
      differing.push_back(a.angle - b.angle);
      adding.push_back(a.angle + b.angle);
    }
  }
  differences_ = mean_phases(differing, weights);
  sums_ = mean_phases(adding, weights);
}

std::vector<double> MeanTurn::operator()(std::span<const double> moments) const {
  std::vector<double> mean(moments.size(), 0.0);
  const auto moment = [&](int i, int j) {
    return i < 0 || j < 0 ? 0.0 : moments[static_cast<std::size_t>(i) * d_ + j];
  };
  const auto set = [&](int i, int j, double value) {
    if (i >= 0 && j >= 0) mean[static_cast<std::size_t>(i) * d_ + j] = value;
  };
  for (std::size_t i = 0; i < components_.size(); ++i) {
    for (std::size_t j = 0; j < components_.size(); ++j) {
      const Component &a = components_[i], &b = components_[j];
      const double xx = moment(a.real, b.real), yy = moment(a.imaginary, b.imaginary);
      const double xy = moment(a.real, b.imaginary), yx = moment(a.imaginary, b.real);
      // E[a conj(b)] rotates by the difference of the angles, and E[a b] by their sum.
      const auto differing = std::complex<double>(xx + yy, yx - xy) * of_difference(i, j);
      const auto adding = std::complex<double>(xx - yy, yx + xy) * of_sum(i, j);
      set(a.real, b.real, (differing.real() + adding.real()) / 2);
      set(a.imaginary, b.imaginary, (differing.real() - adding.real()) / 2);
      set(a.real, b.imaginary, (adding.imag() - differing.imag()) / 2);
      set(a.imaginary, b.real, (adding.imag() + differing.imag()) / 2);
    }
  }
  return mean;
}

std::vector<MeanTurn> mean_turns(const std::vector<std::vector<ChannelTurn>>& turns,
                                 const Geometry& geometry) {
  const auto seen = [&](int layer) {
    return geometry.slides(layer) ? std::min(geometry.sliding_window[layer], geometry.trained_context)
                                  : geometry.trained_context;
  };
  std::vector<MeanTurn> means;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    int same = 0;
    while (same < layer && (turns[same] != turns[layer] || geometry.dim(same) != geometry.dim(layer) ||
                            seen(same) != seen(layer)))
      ++same;
    means.push_back(same < layer ? means[same]
                                 : MeanTurn(turns[layer], geometry.dim(layer), reading_weights(seen(layer))));
  }
  return means;
}

}  // namespace kvant
