// How precisely codebooks are kept.
#pragma once

#include "transform/constants.h"

namespace kvant {

// INT8 where it costs less than this share of the quantization error, on average over a model's heads:
// integer codebooks make kernels faster (design section 4).
inline constexpr double kMaxInt8Cost = 0.03;

// Rounds every codebook that learn_head made, recognized by its "#errors": to INT8 with one scale if the
// rule allows it for all heads that have a codebook of this name on this side, else to f16.
void round_codebooks(Constants& constants);

}  // namespace kvant
