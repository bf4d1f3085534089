// AnyPage: the description of a side's sealed pages for the generic kernel, which serves all pairs of
// formats.
#pragma once

#include "device/cuda/page/page_format.h"

namespace kvant::cuda {

inline constexpr int kMaxLevels = 32;  // levels of Lloyd-Max codes

struct AnyPage {
  PageFormat format;
  int code_bytes;  // the size of the codes, which the parameters follow
  float unit;      // unit of the numbers; with several grids per token, of the scaled numbers
  // The factors of the scale and of the zero of a token's grid. With symmetric grids both multiply the scale.
  float stretch, zero_factor;
  int block_shift;           // Blocks of grids by channel have 32 << block_shift tokens.
  float levels[kMaxLevels];  // levels of a quantizer
  int codebook_bytes;        // per head, 0 if there is no codebook
  int table_at;              // offset of the codebook in shared memory, or -1 for global memory
};

}  // namespace kvant::cuda
