// A layer's pages, as the kernels address them.
#pragma once

#include "attention/cuda/caller_structs.h"
#include "attention/cuda/decode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Whether pages are there, and where the bulk copies can read them.
inline bool has_pages(const kvant_pages& pages) {
  return pages.table != nullptr && pages.pool != nullptr && pages.page_stride % 16 == 0 &&
         pages.layer_offset % 16 == 0 && pages.head_offset % 16 == 0 && pages.side_offset % 16 == 0 &&
         is_aligned(pages.pool, 16);
}

inline constexpr Reason kNoSealedPages =
    "layer.sealed: table or pool is null, or an address is not a multiple of 16";
inline constexpr Reason kNoTailPages =
    "layer.tail: table or pool is null, or an address is not a multiple of 16";
inline constexpr Reason kNoProtectedPages =
    "layer.protected_pages: table or pool is null, or an address is not a multiple of 16";
inline constexpr Reason kBadSink = "layer.sink must be 0 to 128";

inline PageSource source_of(const kvant_pages& pages, int layer) {
  return {pages.table + layer * pages.layer_stride,
          pages.seq_stride,
          pages.head_stride,
          pages.side_stride,
          static_cast<const unsigned char*>(pages.pool) + layer * pages.layer_offset,
          pages.page_stride,
          pages.head_offset,
          pages.side_offset};
}

}  // namespace kvant::cuda
