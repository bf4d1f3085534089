// A layer's pages, as the kernels address them.
#pragma once

#include "attention/cuda/decode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

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
