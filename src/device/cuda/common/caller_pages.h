// Converts the pages and heads that a caller names into the form in which kernels address them. Each check
// returns the reason for refusing the call.
#pragma once

#include <array>
#include <cstring>

#include "device/cuda/common/arguments.h"
#include "device/cuda/common/caller_structs.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

inline constexpr Reason kBadSealedOffsets =
    "layer.sealed_offsets must be multiples of 16 from 0 to below 64 GiB";

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

// Reads a layer's sealed pages and offsets. Returns the reason why the offsets are invalid, or null. Requires
// n_kv_heads <= kMaxKvHeads.
inline Reason read_sealed(const kvant_decode_layer& layer, int n_kv_heads, SealedSource* source) {
  *source = {source_of(layer.sealed, layer.layer), {}};
  if (layer.sealed_offsets == nullptr) return nullptr;
  constexpr std::int64_t kUnit = SealedSource::kOffsetUnit;
  for (int i = 0; i < 2 * n_kv_heads; ++i) {
    const std::int64_t offset = layer.sealed_offsets[i];
    if (offset < 0 || offset % kUnit != 0 || offset / kUnit > std::int64_t{0xffffffff})
      return kBadSealedOffsets;
    source->offsets[i / 2][i % 2] = static_cast<std::uint32_t>(offset / kUnit);
  }
  return nullptr;
}

// HeadGroup lists the KV heads with one pair of formats.
struct HeadGroup {
  const char *key_format, *value_format;
  HeadList heads;
};

struct HeadGroups {
  int n = 0;
  std::array<HeadGroup, kMaxHeadGroups> of{};
};

// Groups the heads of a shape by their formats. Returns the reason for refusing the heads or their formats,
// or null.
inline Reason group_heads(const kvant_decode_shape& shape, HeadGroups* groups) {
  if (shape.n_kv_heads <= 0 || shape.n_kv_heads > kMaxKvHeads) return "shape.n_kv_heads must be 1 to 64";
  *groups = {};
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    const char* key = shape.head_key_formats != nullptr ? shape.head_key_formats[head] : shape.key_format;
    const char* value =
        shape.head_value_formats != nullptr ? shape.head_value_formats[head] : shape.value_format;
    if (key == nullptr || value == nullptr) return "shape: the format of a head is null";
    int i = 0;
    while (i < groups->n && (std::strcmp(groups->of[i].key_format, key) != 0 ||
                             std::strcmp(groups->of[i].value_format, value) != 0))
      ++i;
    if (i == kMaxHeadGroups) return "shape: more than 8 pairs of formats";
    if (i == groups->n) groups->of[groups->n++] = {key, value, {}};
    HeadList& heads = groups->of[i].heads;
    heads.at[heads.n++] = static_cast<std::uint8_t>(head);
  }
  return nullptr;
}

}  // namespace kvant::cuda
