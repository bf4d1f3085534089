// Reads and writes the rows of a call of kvant_decode_attention: new keys and values, queries, outputs.
#include <algorithm>

#include "device/caller_structs.h"
#include "device/cpu/calls.h"
#include "device/cpu/rows.h"

namespace kvant::device::cpu {

std::int64_t attention_work(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths) {
  std::int64_t n_tokens = 0;
  for (int seq = 0; seq < shape.n_seqs; ++seq) {
    n_tokens += lengths.sealed_pages == nullptr ? 0 : std::int64_t{kPageTokens} * lengths.sealed_pages[seq];
    n_tokens += lengths.tail_tokens == nullptr ? 0 : lengths.tail_tokens[seq];
  }
  return n_tokens * shape.n_kv_heads * shape.head_dim * (2 * shape.group + 4);
}

void append_new_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                     const kvant_decode_layer& layer, int seq, int head) {
  const kvant_new_rows* rows = layer.new_rows;
  if (rows == nullptr) return;
  const auto [first, end] = query_rows(shape, lengths, seq);
  for (int row = first; row < std::min(end, rows->n_rows); ++row) {
    const int tail_token = lengths.tail_tokens[seq] - (end - row);
    if (tail_token >= 0) append_row(shape, layer, *rows, row, seq, head, tail_token);
  }
}

void read_query(const kvant_decode_shape& shape, const kvant_decode_layer& layer, std::int64_t row,
                int query_head, float* q) {
  const int d = shape.head_dim;
  const kvant_new_rows* rows = layer.new_rows;
  const bool transforms = rows != nullptr && rows->queries != nullptr;
  const int channels = transforms && layer.q_channels == 0 ? rows->key_channels : layer.q_channels;
  std::fill_n(q, d, 0.0F);
  read_numbers(layer.q, layer.q_type, row * layer.q_seq_stride + query_head * layer.q_head_stride,
               channels_or_all(channels, d), q);
  if (!transforms) return;
  const std::ptrdiff_t of_head = std::ptrdiff_t{query_head / shape.group} * d;
  scale_row(q, d, rows->query_factors == nullptr ? nullptr : rows->query_factors + of_head);
  if (rows->key_hadamard != 0) rotate_row(q, d);
}

void write_output(const kvant_decode_shape& shape, const kvant_decode_layer& layer, std::int64_t row,
                  int query_head, float* out, float lse) {
  const int d = shape.head_dim;
  if (layer.lse != nullptr) layer.lse[row * shape.n_kv_heads * shape.group + query_head] = lse;
  if (layer.out_hadamard != 0) rotate_row(out, d);
  const std::ptrdiff_t of_head = std::ptrdiff_t{query_head / shape.group} * d;
  scale_row(out, d, layer.out_factors == nullptr ? nullptr : layer.out_factors + of_head);
  write_numbers(out, channels_or_all(layer.out_channels, d), layer.out_type,
                row * layer.out_seq_stride + query_head * layer.out_head_stride, layer.out);
}

}  // namespace kvant::device::cpu
