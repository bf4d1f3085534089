// Transforms stored values into the model's own space and back, in integers. The functions undo or apply the
// Hadamard rotation, and RoPE's rotation of K.
#pragma once

#include <cstdint>
#include <vector>

#include "compact/predictor.h"

namespace kvant {

// Computes x [n, d] <- x H with the orthonormal H of blocks of `order` channels (transform/walsh_hadamard.h).
// Order 1 leaves x unchanged. Values before and after are clamped to +-2^21 (kLargestUnits).
void rotate_units(std::int32_t* x, int n, int d, int order);

// Applies RoPE's rotations to the tokens of a page. Most layers of a model rotate alike, so most pages need
// only one PageTurns for all layers.
class PageTurns {
 public:
  // Computes the angles for the tokens from first_token on, unless the angles are already there.
  void prepare(const std::vector<ChannelTurn>& turns, int first_token);
  // Rotates x [kPageTokens, d], in units, in place.
  void turn(std::int32_t* x, int d) const { apply<false>(x, d); }
  void turn_back(std::int32_t* x, int d) const { apply<true>(x, d); }

 private:
  struct Angle {
    std::int32_t cosine, sine;  // in 1 / 2^15
  };
  template <bool kBack>
  void apply(std::int32_t* x, int d) const;

  std::vector<ChannelTurn> turns_;
  int first_token_ = -1;
  std::vector<Angle> angles_;  // [kPageTokens, turns]
};

}  // namespace kvant
