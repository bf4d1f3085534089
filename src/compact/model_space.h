// From the space of stored values to the model's own and back, in integers: Hadamard rotation, and RoPE's
// turns of K.
#pragma once

#include <cstdint>
#include <vector>

#include "compact/predictor.h"

namespace kvant {

// x [n, d] <- x H, with the orthonormal H of blocks of `order` channels (transform/walsh_hadamard.h); 1: as
// it is. Values within +-2^21 (kLargestUnits) before and after: what is beyond is cut off.
void rotate_units(std::int32_t* x, int n, int d, int order);

// RoPE of a page's tokens. A model's layers mostly turn alike, so that a page needs one of these.
class PageTurns {
 public:
  // Of the tokens from first_token on. Does nothing where they are at hand.
  void prepare(const std::vector<ChannelTurn>& turns, int first_token);
  // x: [kPageTokens, d] in units, in place.
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
