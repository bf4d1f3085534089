// Computes second moments of queries in the frame of the pages that they read. RoPE rotates K by its
// position, so queries read a page's keys under many angles. The moments are averages over these angles.
#pragma once

#include <complex>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"

namespace kvant {

// Returns the weights [n_positions] of queries by their distance x from the middle of a page, in contexts of
// n_positions tokens. The weight is (n_positions - x) / x^1.5 from the first x after the page on. The
// numerator counts the possible places of page and query. The denominator follows the derivatives by scores,
// which decrease about like 1 / x^1.5.
std::vector<double> reading_weights(int n_positions);

// MeanTurn is the mean of R(x) M R(x)^T over distances x, where R(x) rotates channels as RoPE does for x
// tokens. The mean transforms moments M [d, d] of queries before RoPE into the frame of a page's middle.
// Channel pairs that rotate fast lose their direction, and slow pairs keep it. Channels without a rotation
// stay as they are.
class MeanTurn {
 public:
  // `weights` belong to the distances 0, 1, 2, ..., and must not all be 0. Each distance costs O(d^2)
  // operations.
  MeanTurn(std::span<const ChannelTurn> turns, int d, std::span<const double> weights);

  std::vector<double> operator()(std::span<const double> moments) const;

 private:
  // Component is a pair of channels as a complex number that rotates by `angle` per token, or a single
  // channel without a rotation.
  struct Component {
    int real;
    int imaginary;  // -1 if the imaginary part is always 0
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
  // differences_ and sums_ hold the means of e^(i angle x) over distances x. The angle is the difference or
  // the sum of the angles of two components.
  std::vector<std::complex<double>> differences_, sums_;
};

// Returns the mean rotation of each layer, over the distances to which the layer's queries can attend.
// `turns` has RoPE's rotations by layer.
std::vector<MeanTurn> mean_turns(const std::vector<std::vector<ChannelTurn>>& turns,
                                 const Geometry& geometry);

}  // namespace kvant
