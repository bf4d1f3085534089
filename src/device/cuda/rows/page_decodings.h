// Fills in how the pages of a layer are decoded and where they are, for kernels that turn pages back into
// rows. The functions also check formats and pointers, and refuse formats that kernels cannot read.
#pragma once

#include "device/cuda/common/caller_pages.h"
#include "device/cuda/page/page_format.h"
#include "device/cuda/rows/dequantize_kernel.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Finds how pages of a format are decoded. Returns false if the format is unknown or has no codes.
inline bool find_decoding(const char* name, int head_dim, PageDecoding* decoding) {
  *decoding = {};
  PageFormat& stored = decoding->stored;
  if (!find_page_format(name, head_dim, stored) || !find_encoding_of(stored, &decoding->encoding))
    return false;
  decoding->layout = stored.layout;
  decoding->group = stored.group;
  decoding->page_bytes = static_cast<int>(kvant_page_bytes(name, head_dim));
  if (stored.kind == CodeKind::level) set_unit_levels(name, head_dim, decoding->levels);
  if (stored.kind == CodeKind::state) decoding->trellis = kTrellisCodes[stored.layout.bits - 1];
  return decoding->page_bytes > 0 && decoding->page_bytes <= max_page_bytes(head_dim);
}

// Sets how the pages of every head are decoded. Refuses formats that have no decoding, and vector formats
// without codebooks.
inline kvant_status set_decodings(const kvant_decode_shape& shape, const HeadGroups& groups,
                                  const kvant_decode_layer& layer, DequantizeArgs* args) {
  for (int i = 0; i < groups.n; ++i) {
    const HeadGroup& group = groups.of[i];
    for (int head = 0; head < group.heads.n; ++head)
      args->decoding_of_head[group.heads.at[head]] = static_cast<std::uint8_t>(i);
    for (int side = 0; side < 2; ++side) {
      PageDecoding& decoding = args->decodings[i][side];
      if (!find_decoding(side == KVANT_KEY ? group.key_format : group.value_format, shape.head_dim,
                         &decoding))
        return refuse(KVANT_UNSUPPORTED, side == KVANT_KEY
                                             ? "shape.key_format: no kernel decodes its pages"
                                             : "shape.value_format: no kernel decodes its pages");
      decoding.codebooks =
          static_cast<const __half*>(side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks);
      decoding.codebook_stride = side == KVANT_KEY ? layer.key_codebook_stride : layer.value_codebook_stride;
      if (decoding.encoding == Encoding::vectors && decoding.codebooks == nullptr)
        return refuse_argument("layer: a vector format has no codebooks");
    }
  }
  return KVANT_OK;
}

// Sets where pages are. Returns the reason if sealed pages cannot be found, or null. Requires n_kv_heads <=
// kMaxKvHeads.
inline Reason set_sources(const kvant_decode_layer& layer, int n_kv_heads, DequantizeArgs* args) {
  args->tail = source_of(layer.tail, layer.layer);
  args->protected_pages = source_of(layer.protected_pages, layer.layer);
  args->sink = layer.sink;
  args->masks = reinterpret_cast<const uint4*>(layer.masks);
  args->mask_seq_stride = layer.mask_seq_stride;
  args->mask_head_stride = layer.mask_head_stride;
  return read_sealed(layer, n_kv_heads, &args->sealed);
}

}  // namespace kvant::cuda
