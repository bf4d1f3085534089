// What kvant_weigh_tokens's kernel shares with the code that launches it.
#pragma once

#include <cstdint>

namespace kvant::cuda {

struct TokenWeightsArgs {
  int n_queries, n_tokens, n_visible, group;
  float softmax_scale, softcap;  // softcap: 0: none
  int q_f32;                     // not 0: queries are F32, otherwise BF16
  const void *q, *keys;          // keys: BF16
  std::int64_t q_token_stride, q_head_stride, key_token_stride, key_head_stride;
  const float* lse;
  std::int64_t lse_token_stride, lse_head_stride;
  float* weights;
  std::int64_t weight_head_stride;
};

}  // namespace kvant::cuda
