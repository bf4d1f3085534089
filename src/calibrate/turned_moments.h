// Second moments of queries as the pages that they read see them.
#pragma once

#include <complex>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"

namespace kvant {

// How much queries at distance x from the middle of a page count, [n_positions], in contexts of n_positions
// tokens: (n_positions - x) / x^1.5, from the first x behind the page on. There are so many places where a
// page and its reader may stand; and the derivatives by scores fall about so with the distance.
std::vector<double> reading_weights(int n_positions);

// The mean of R(x) M R(x)^T over distances x, where R(x) turns channels as RoPE does for x tokens: what
// moments M [d, d] of queries as they are before RoPE become in the frame of a page's middle. Pairs of
// channels that turn fast lose their direction by it, those that hardly turn keep it. Channels that no turn
// names stand still.
class MeanTurn {
 public:
  // weights: of the distances 0, 1, 2 ..., not all 0. Takes O(d^2) for each of them.
  MeanTurn(std::span<const ChannelTurn> turns, int d, std::span<const double> weights);

  std::vector<double> operator()(std::span<const double> moments) const;

 private:
  // A pair of channels as a complex number, which turns by `angle` a token; or one that stands still.
  struct Component {
    int real;
    int imaginary;  // -1: always 0
    double angle;
  };
  std::complex<double> of_difference(std::size_t a, std::size_t b) const {
    return differences_[a * components_.size() + b];
  }
  std::complex<double> of_sum(std::size_t a, std::size_t b) const {
    return sums_[a * components_.size() + b];
  }

  int d_;
  std::vector<Component> components_;
  // The means of e^(i angle x) for the differences and the sums of each two components' angles.
  std::vector<std::complex<double>> differences_, sums_;
};

// Of each layer, as far as its queries see. turns: of the layers.
std::vector<MeanTurn> mean_turns(const std::vector<std::vector<ChannelTurn>>& turns,
                                 const Geometry& geometry);

}  // namespace kvant
