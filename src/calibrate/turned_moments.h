// Second moments of queries in the frame of the pages that they read.
#pragma once

#include <complex>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"

namespace kvant {

// Weights of queries by their distance x from the middle of a page, [n_positions], in contexts of n_positions
// tokens: (n_positions - x) / x^1.5, from the first x after the page on. The numerator counts the possible
// places of page and reader. The derivatives by scores decrease about like the denominator.
std::vector<double> reading_weights(int n_positions);

// The mean of R(x) M R(x)^T over distances x, where R(x) rotates channels as RoPE does for x tokens. It
// transforms moments M [d, d] of queries before RoPE into the frame of a page's middle. Pairs of channels
// that rotate fast lose their direction, slow ones keep it. Channels without a rotation stay as they are.
class MeanTurn {
 public:
  // weights: of the distances 0, 1, 2 ..., not all 0. Takes O(d^2) for each of them.
  MeanTurn(std::span<const ChannelTurn> turns, int d, std::span<const double> weights);

  std::vector<double> operator()(std::span<const double> moments) const;

 private:
  // A pair of channels as a complex number that rotates by `angle` per token, or a single channel that
  // doesn't rotate.
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

// Returns the mean rotation of each layer, over the distances that its queries can see. turns: by layer.
std::vector<MeanTurn> mean_turns(const std::vector<std::vector<ChannelTurn>>& turns,
                                 const Geometry& geometry);

}  // namespace kvant
