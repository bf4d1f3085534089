// Groups KV heads by their formats; one launch handles all heads with the same pair.
#pragma once

#include <array>
#include <cstring>

#include "device/cuda/api/refusal.h"
#include "device/cuda/decode/decode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

struct HeadGroup {
  const char *key_format, *value_format;
  HeadList heads;
};

struct HeadGroups {
  int n = 0;
  std::array<HeadGroup, kMaxHeadGroups> of{};
};

// Returns what is wrong with the heads of the shape or their formats.
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
