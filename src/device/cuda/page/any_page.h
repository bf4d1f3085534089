// A side's sealed pages as the generic kernel gets them.
#pragma once

#include "device/cuda/page/page_format.h"

namespace kvant::cuda {

inline constexpr int kMaxLevels = 32;  // of Lloyd-Max codes

struct AnyPage {
  PageFormat format;
  int code_bytes;              // parameters lie behind them
  float unit;                  // of the numbers; of several grids a token, of what they make of numbers
  float stretch, zero_factor;  // of a token's grid: of its scale, and of its zero (symmetric: of its scale)
  int block_shift;             // of channels' grids: blocks have 32 << block_shift tokens
  float levels[kMaxLevels];    // of a quantizer
  int codebook_bytes;          // of a head, 0 if there is none
  int table_at;                // of the codebook in shared memory, or -1: it stays in global memory
};

}  // namespace kvant::cuda
