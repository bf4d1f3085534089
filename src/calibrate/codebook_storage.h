// Chooses the precision in which codebooks are stored. Codebooks are INT8 if that costs almost no accuracy,
// because kernels are faster with integers.
#pragma once

#include "transform/constants.h"

namespace kvant {

// Codebooks become INT8 if that raises the quantization error by less than this share, on average over a
// model's heads. Kernels are faster with integer codebooks.
inline constexpr double kMaxInt8Cost = 0.03;

// Rounds every codebook that learn_head() made, which has a companion constant "#errors". One decision
// applies to all heads with a codebook of the same name on the same side. The codebooks become INT8 with one
// scale if that is cheap enough (kMaxInt8Cost), else f16.
void round_codebooks(Constants& constants);

}  // namespace kvant
