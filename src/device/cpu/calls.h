// Declares the calls of kvant/kvant.h. cpu_api.cc has checked their arguments, so no call here can refuse
// them.
#pragma once

#include "device/cpu/kernels/byte_kernels.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {

inline constexpr int kMostChannels = 512;  // channels of a head

void transform(const kvant_transformation& t);
void append(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const kvant_new_rows& rows);
// Writes one head of a row of new keys and values into the tail.
void append_row(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const kvant_new_rows& rows,
                int row, int seq, int head, int tail_token);
// Writes a row of new keys or values as the tail keeps it, [head_dim] in F32.
void stored_row(const kvant_new_rows& rows, int head_dim, int row, int head, int side, float* to);

// Returns the kernels called `name`, or the best that the processor runs if `name` is null. The result is
// null for the name "reference" and for narrow heads, and stands for the reference
// (kernels/page_attention.h).
const kvant::cpu::ByteKernels* kernels_of(const char* name, int head_dim);
// Returns whether `name` is null, "reference", or an instruction set that the processor and the build have.
bool knows_kernels(const char* name);
// Returns a name such as "cpu/avx512/ch4g128+tok4g128", which is never freed.
const char* kernel_name(const kvant_decode_shape& shape);
void decode_attention(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                      const kvant_decode_layer& layer);
void prompt_attention(const kvant_prompt_shape& shape, const kvant_prompt& prompt);

void seal_pages(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                const kvant_seal_range& range);
void seal_layers(int n_layers, const kvant_decode_shape* const* shapes,
                 const kvant_decode_layer* const* layers, const kvant_seal_range& range);
void protect(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
             const kvant_protected_rows& rows);

void dequantize(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                const kvant_decode_layer& layer, const kvant_dequantization& to);
void merge(int n_seqs, int n_tokens, int n_heads, int head_dim, const kvant_partial& into,
           const kvant_partial& other);
void weigh_tokens(const kvant_decode_shape& shape, const kvant_token_weights& weights);

void plan_step(const kvant_step& step);

}  // namespace kvant::device::cpu
