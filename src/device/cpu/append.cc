#include <algorithm>
#include <vector>

#include "device/caller_structs.h"
#include "device/cpu/calls.h"
#include "device/cpu/rows.h"
#include "device/cpu/workers.h"

namespace kvant::device::cpu {
namespace {

// Returns the type of a transformation's source.
kvant_type source_type(const kvant_transformation& t) {
  if (t.source == nullptr) return t.type;
  if (t.source_is_f16 != 0) return KVANT_F16;
  if (t.source_is_bf16 != 0) return KVANT_BF16;
  return t.source_is_f32 != 0 ? KVANT_F32 : t.type;
}

void transform_row(const kvant_transformation& t, int i, float* row) {
  const int d = t.head_dim;
  const bool in_place = t.source == nullptr;
  const int n_read = in_place ? d : channels_or_all(t.source_channels, d);
  const int n_written = in_place ? d : channels_or_all(t.row_channels, d);
  for (int head = 0; head < t.n_heads; ++head) {
    const std::int64_t at = i * t.row_stride + head * t.head_stride;
    std::fill_n(row, d, 0.0F);
    read_numbers(in_place ? t.rows : t.source, source_type(t),
                 in_place ? at : i * t.source_row_stride + head * t.source_head_stride, n_read, row);
    const std::ptrdiff_t of_factors = std::ptrdiff_t{head / std::max(t.heads_of_factors, 1)} * d;
    scale_row(row, d, t.factors == nullptr ? nullptr : t.factors + of_factors);
    if (t.hadamard != 0) rotate_row(row, d);
    scale_row(row, d, t.factors_after == nullptr ? nullptr : t.factors_after + of_factors);
    write_numbers(row, n_written, t.type, at, t.rows);
  }
}

void transform_queries(const kvant_decode_shape& shape, const kvant_new_rows& rows) {
  kvant_transformation t{};
  t.n_rows = rows.n_rows;
  t.n_heads = shape.n_kv_heads * shape.group;
  t.head_dim = shape.head_dim;
  t.rows = rows.queries;
  t.type = rows.type;
  t.row_stride = rows.query_row_stride;
  t.head_stride = rows.query_head_stride;
  t.source = rows.queries;
  t.source_row_stride = rows.query_row_stride;
  t.source_head_stride = rows.query_head_stride;
  t.source_channels = t.row_channels = rows.key_channels;
  t.source_is_f16 = rows.type == KVANT_F16 ? 1 : 0;
  t.factors = rows.query_factors;
  t.heads_of_factors = shape.group;
  t.hadamard = rows.key_hadamard;
  transform(t);
}

}  // namespace

void transform(const kvant_transformation& t) {
  for_each_task(t.n_rows, std::int64_t{8} * t.n_rows * t.n_heads * t.head_dim, [&](int i) {
    std::vector<float> row(t.head_dim);
    transform_row(t, i, row.data());
  });
}

void stored_row(const kvant_new_rows& rows, int d, int row, int head, int side, float* to) {
  const bool is_key = side == KVANT_KEY;
  const float* factors = is_key ? rows.key_factors : rows.value_factors;
  std::fill_n(to, d, 0.0F);
  read_numbers(is_key ? rows.keys : rows.values, rows.type,
               row * (is_key ? rows.key_row_stride : rows.value_row_stride) +
                   head * (is_key ? rows.key_head_stride : rows.value_head_stride),
               channels_or_all(is_key ? rows.key_channels : rows.value_channels, d), to);
  scale_row(to, d, factors == nullptr ? nullptr : factors + std::ptrdiff_t{head} * d);
  if ((is_key ? rows.key_hadamard : rows.value_hadamard) != 0) rotate_row(to, d);
}

void append_row(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const kvant_new_rows& rows,
                int row, int seq, int head, int tail_token) {
  float values[kMostChannels];
  for (int side = 0; side < 2; ++side) {
    stored_row(rows, shape.head_dim, row, head, side, values);
    write_row(values, shape.head_dim, tail_token % kPageTokens,
              page_address(layer.tail, seq, layer.layer, head, side, tail_token / kPageTokens));
  }
}

void append(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const kvant_new_rows& rows) {
  const std::int64_t work = std::int64_t{16} * rows.n_rows * shape.n_kv_heads * shape.head_dim;
  for_each_task(shape.n_kv_heads, work, [&](int head) {
    for (int i = 0; i < rows.n_rows; ++i) {
      if (rows.tail_token[i] >= 0) append_row(shape, layer, rows, i, rows.seq[i], head, rows.tail_token[i]);
    }
  });
  if (rows.queries != nullptr) transform_queries(shape, rows);
}

}  // namespace kvant::device::cpu
