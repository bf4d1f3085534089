#include "device/cpu/rows.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/float16.h"
#include "format/code_order.h"
#include "transform/walsh_hadamard.h"

namespace kvant::device::cpu {

std::byte* page_address(const kvant_pages& p, std::int64_t seq, int layer, int head, int side, int page) {
  const std::int32_t id = p.table[seq * p.seq_stride + layer * p.layer_stride + head * p.head_stride +
                                  side * p.side_stride + page];
  const auto* pool = static_cast<const std::byte*>(p.pool);
  return const_cast<std::byte*>(pool + id * p.page_stride + layer * p.layer_offset + head * p.head_offset +
                                side * p.side_offset);
}

std::byte* sealed_address(const kvant_decode_layer& layer, std::int64_t seq, int head, int side, int page) {
  return page_address(layer.sealed, seq, layer.layer, head, side, page) +
         (layer.sealed_offsets == nullptr ? 0 : layer.sealed_offsets[2 * head + side]);
}

const char* format_name(const kvant_decode_shape& shape, int head, int side) {
  const char* const* by_head = side == KVANT_KEY ? shape.head_key_formats : shape.head_value_formats;
  if (by_head != nullptr) return by_head[head];
  return side == KVANT_KEY ? shape.key_format : shape.value_format;
}

const StoredFormat& stored_format(const char* name, int side, int head_dim) {
  struct Kept : StoredFormat {
    std::unique_ptr<const Format> ordered;
  };
  static std::mutex reading;
  static auto& known = *new std::map<std::tuple<const Format*, int, int>, Kept>;
  const Format* const canonical = find_format(name);
  const std::unique_lock lock(reading);
  Kept& kept = known[{canonical, side, head_dim}];
  if (kept.format != nullptr) return kept;
  kept.ordered = with_code_order(*canonical, side == KVANT_KEY ? Side::key : Side::value, head_dim);
  kept.context.head_dim = head_dim;
  if (!canonical->codebook_shape()) kept.context.table = canonical->code_table(kept.context);
  kept.format = kept.ordered != nullptr ? kept.ordered.get() : canonical;
  return kept;
}

SideContext::SideContext(const kvant_decode_shape& shape, const kvant_decode_layer& layer, int head,
                         int side) {
  const int d = shape.head_dim;
  const char* const name = format_name(shape, head, side);
  if (name == nullptr || find_format(name) == nullptr) return;
  stored_ = &stored_format(name, side, d);
  const void* all = side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks;
  const std::int64_t stride = side == KVANT_KEY ? layer.key_codebook_stride : layer.value_codebook_stride;
  if (!format().codebook_shape() || all == nullptr) return;
  std::vector<float> centroids(format().constant_size(d));
  float_row_from_f16(static_cast<const std::uint16_t*>(all) + head * stride, centroids.data(),
                     centroids.size());
  constants_.set(0, 0, Side::key, format().needed_constants().front(), std::move(centroids));
  with_codebook_.head_dim = d;
  with_codebook_.constants.all = &constants_;
  with_codebook_.table = format().code_table(with_codebook_);
}

TokenMask masked_tokens(const kvant_decode_layer& layer, std::int64_t seq, int head, int page) {
  TokenMask mask;
  for (int t = 0; page == 0 && t < layer.sink; ++t) mask.set(t);
  if (layer.masks == nullptr) return mask;
  const std::uint32_t* words =
      layer.masks + 4 * (seq * layer.mask_seq_stride + head * layer.mask_head_stride + page);
  for (int t = 0; t < kPageTokens; ++t) {
    if ((words[t / 32] >> (t % 32) & 1) != 0) mask.set(t);
  }
  return mask;
}

PageView sealed_page(const kvant_decode_layer& layer, std::int64_t seq, int head, int page,
                     const SideContext& key, const SideContext& value) {
  const auto side_of = [&](const SideContext& context, int side) {
    return PageSide{&context.format(), sealed_address(layer, seq, head, side, page), &context.context()};
  };
  return {.first_token = page * kPageTokens,
          .n_tokens = kPageTokens,
          .masked = masked_tokens(layer, seq, head, page),
          .k = side_of(key, KVANT_KEY),
          .v = side_of(value, KVANT_VALUE)};
}

std::pair<int, int> query_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                               int seq) {
  if (lengths.query_begins != nullptr) return {lengths.query_begins[seq], lengths.query_begins[seq + 1]};
  const int n = std::max(shape.max_queries, 1);
  return {seq * n, (seq + 1) * n};
}

void read_numbers(const void* rows, kvant_type type, std::int64_t at, int n, float* to) {
  const auto* halves = static_cast<const std::uint16_t*>(rows) + at;
  if (type == KVANT_F32) {
    std::copy_n(static_cast<const float*>(rows) + at, n, to);
  } else if (type == KVANT_F16) {
    float_row_from_f16(halves, to, n);
  } else {
    float_row_from_bf16(halves, to, n);
  }
}

void write_numbers(const float* from, int n, kvant_type type, std::int64_t at, void* rows) {
  auto* halves = static_cast<std::uint16_t*>(rows) + at;
  if (type == KVANT_F32) {
    std::copy_n(from, n, static_cast<float*>(rows) + at);
  } else if (type == KVANT_F16) {
    f16_row_from_float(from, halves, n);
  } else {
    bf16_row_from_float(from, halves, n);
  }
}

void read_row(const std::byte* page, int d, int token, float* to) {
  read_numbers(page, KVANT_BF16, std::int64_t{token} * d, d, to);
}

void write_row(const float* from, int d, int token, std::byte* page) {
  write_numbers(from, d, KVANT_BF16, std::int64_t{token} * d, page);
}

void scale_row(float* row, int d, const float* factors) {
  for (int c = 0; factors != nullptr && c < d; ++c) row[c] *= factors[c];
}

void rotate_row(float* row, int d) {
  walsh_hadamard({row, 1, d}, hadamard_order(d));
}

float* correction_state(const kvant_correction& c, std::int64_t seq, int head) {
  return c.states + (c.state_of_seq == nullptr ? seq : c.state_of_seq[seq]) * c.state_seq_stride +
         head * c.state_head_stride;
}

RowEnds row_ends(const kvant_correction* correction, std::span<const float* const> sums,
                 const float* sink_logits, int head, int group, int head_dim, float softmax_scale) {
  const std::ptrdiff_t first_head = std::ptrdiff_t{head} * group;
  RowEnds ends{.sink_logits = sink_logits == nullptr ? nullptr : sink_logits + first_head,
               .softmax_scale = softmax_scale};
  if (correction == nullptr) return ends;
  ends.sums = sums;
  ends.query_maps = correction->query_maps + first_head * feature_map_weights(head_dim);
  if (correction->absolute != 0) ends.scale = CorrectionScale::absolute;
  return ends;
}

}  // namespace kvant::device::cpu
