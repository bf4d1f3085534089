// Describes a side's sealed pages to the generic kernel.
#pragma once

#include "device/cuda/page/page_format.h"

namespace kvant::cuda {

inline constexpr int kMaxLevels = 32;  // levels of Lloyd-Max codes

struct AnyPage {
  PageFormat format;
  int code_bytes;  // parameters follow them
  float unit;      // unit of the numbers; with several grids per token, of the scaled numbers
  // factors of the scale and of the zero of a token's grid (symmetric: both of its scale)
  float stretch, zero_factor;
  int block_shift;           // for grids by channel: blocks have 32 << block_shift tokens
  float levels[kMaxLevels];  // levels of a quantizer
  int codebook_bytes;        // per head; 0: there is none
  int table_at;              // offset of the codebook in shared memory, or -1: it stays in global memory
};

}  // namespace kvant::cuda
