// AnyPage describes a side's sealed pages to the generic kernel, which serves all pairs of formats. The host
// derives an AnyPage from a FormatDescription when it makes the kernel's entry.
#pragma once

#include "device/cuda/page/page_format.h"

namespace kvant::cuda {

inline constexpr int kMaxLevels = 32;  // levels of Lloyd-Max codes

struct AnyPage {
  PageFormat format;
  int code_bytes;  // size of the codes; the parameters follow the codes
  float unit;      // unit of the numbers, or of the scaled numbers if a token has several grids
  // stretch multiplies the scale of a token's grid, and zero_factor multiplies the zero. With symmetric
  // grids, both multiply the scale.
  float stretch, zero_factor;
  int block_shift;           // blocks of grids by channel have 32 << block_shift tokens
  float levels[kMaxLevels];  // levels of a quantizer
  int codebook_bytes;        // bytes for each head; 0 without a codebook
  int table_at;              // offset of the codebook in shared memory, or -1 for global memory
};

}  // namespace kvant::cuda
