// The calls of kvant/kvant.h, of arguments that cpu_api.cc has checked.
#pragma once

#include "kvant/kvant.h"

namespace kvant::device::cpu {

void transform(const kvant_transformation& t);
void append(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const kvant_new_rows& rows);
// Appends rows that come with a call of kvant_decode_attention.
void append_last(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                 const kvant_decode_layer& layer);
// Writes a row of new keys or values as the tail keeps it, [head_dim] in F32.
void stored_row(const kvant_new_rows& rows, int head_dim, int row, int head, int side, float* to);

void decode_attention(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                      const kvant_decode_layer& layer);
void prompt_attention(const kvant_prompt_shape& shape, const kvant_prompt& prompt);

void seal_pages(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                const kvant_seal_range& range);
void protect(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
             const kvant_protected_rows& rows);

void dequantize(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                const kvant_decode_layer& layer, const kvant_dequantization& to);
void merge(int n_seqs, int n_tokens, int n_heads, int head_dim, const kvant_partial& into,
           const kvant_partial& other);
void weigh_tokens(const kvant_decode_shape& shape, const kvant_token_weights& weights);

void plan_step(const kvant_step& step);

}  // namespace kvant::device::cpu
