// The precision in which codebooks are stored.
#pragma once

#include "transform/constants.h"

namespace kvant {

// INT8 is used if it costs less than this share of the quantization error, on average over a model's heads,
// because integer codebooks make kernels faster (design section 4).
inline constexpr double kMaxInt8Cost = 0.03;

// Rounds every codebook that learn_head made, recognized by its "#errors". It uses INT8 with one scale if the
// rule allows that for all heads with a codebook of this name on this side, else f16.
void round_codebooks(Constants& constants);

}  // namespace kvant
