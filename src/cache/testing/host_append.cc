#include "cache/testing/host_append.h"

#include <algorithm>
#include <vector>

#include "base/float16.h"
#include "cache/testing/host_rows.h"

namespace kvant::testing::host {

kvant_status transform(const kvant_transformation* t, kvant_stream) {
  std::vector<float> row(t->head_dim);
  for (int i = 0; i < t->n_rows; ++i) {
    for (int head = 0; head < t->n_heads; ++head) {
      const std::int64_t at = i * t->row_stride + head * t->head_stride;
      auto* bf16 = static_cast<std::uint16_t*>(t->rows) + at;
      auto* f32 = static_cast<float*>(t->rows) + at;
      if (t->source != nullptr) {  // the engine names those of the other type only
        read_numbers(t->source, t->source_is_f32 != 0 ? KVANT_F32 : KVANT_BF16,
                     i * t->source_row_stride + head * t->source_head_stride, row);
      } else {
        read_numbers(t->rows, t->type, at, row);
      }
      const int group = std::max(t->heads_of_factors, 1);
      scale(row, t->factors, head / group);
      if (t->hadamard != 0) walsh_hadamard(row);
      scale(row, t->factors_after, head / group);
      if (t->type == KVANT_F32) {
        std::copy(row.begin(), row.end(), f32);
      } else {
        bf16_row_from_float(row.data(), bf16, row.size());
      }
    }
  }
  return KVANT_OK;
}

namespace {

// Of F32 rows.
kvant_status transform_queries(const kvant_decode_shape& shape, const kvant_new_rows& rows) {
  if (rows.type != KVANT_F32) return KVANT_UNSUPPORTED;
  kvant_transformation t{};
  t.n_rows = rows.n_rows;
  t.n_heads = shape.n_kv_heads * shape.group;
  t.head_dim = shape.head_dim;
  t.rows = rows.queries;
  t.type = rows.type;
  t.row_stride = rows.query_row_stride;
  t.head_stride = rows.query_head_stride;
  t.factors = rows.query_factors;
  t.heads_of_factors = shape.group;
  t.hadamard = rows.key_hadamard;
  return transform(&t, nullptr);
}

}  // namespace

kvant_status append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                    const kvant_new_rows* rows, kvant_stream) {
  const int d = shape->head_dim;
  for (int i = 0; i < rows->n_rows; ++i) {
    const int token = rows->tail_token[i];
    if (token < 0) continue;
    for (int head = 0; head < shape->n_kv_heads; ++head) {
      for (int side = 0; side < 2; ++side) {
        const bool is_key = side == KVANT_KEY;
        std::vector<float> row(d);
        read_numbers(is_key ? rows->keys : rows->values, rows->type,
                     i * (is_key ? rows->key_row_stride : rows->value_row_stride) +
                         head * (is_key ? rows->key_head_stride : rows->value_head_stride),
                     row);
        scale(row, is_key ? rows->key_factors : rows->value_factors, head);
        if ((is_key ? rows->key_hadamard : rows->value_hadamard) != 0) walsh_hadamard(row);
        std::byte* page = address(layer->tail, rows->seq[i], layer->layer, head, side, token / kPageTokens);
        bf16_row_from_float(
            row.data(),
            reinterpret_cast<std::uint16_t*>(page) + std::ptrdiff_t{1} * (token % kPageTokens) * d, d);
      }
    }
  }
  return rows->queries == nullptr ? KVANT_OK : transform_queries(*shape, *rows);
}

kvant_status append_last(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                         const kvant_decode_layer& layer) {
  kvant_new_rows rows = *layer.new_rows;
  std::vector<std::int32_t> seq(rows.n_rows), token(rows.n_rows);
  for (int i = 0; i < shape.n_seqs; ++i) {
    const auto [first, end] = query_rows(shape, lengths, i);
    for (int row = first; row < end; ++row) {
      seq[row] = i;
      token[row] = lengths.tail_tokens[i] - (end - row);
    }
  }
  rows.seq = seq.data();
  rows.tail_token = token.data();
  return append(&shape, &layer, &rows, nullptr);
}

}  // namespace kvant::testing::host
