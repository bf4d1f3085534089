#include "device/cpu/kernels/prompt_products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/simd_clones.h"
#include "device/cpu/kernels/code_page.h"
#include "device/cpu/kernels/flashq.h"
#include "device/cpu/kernels/score_rules.h"
#include "format/code_order.h"

namespace kvant::cpu {
namespace {

// The number is a multiple of the rows that kernels take at once. The scores of these rows, 24 KiB, stay in
// the first-level cache.
constexpr int kRowsAtOnce = 48;

// Adding kRounding to a number of at most 2^22 rounds the number, and leaves the result in the lowest bits of
// the sum.
constexpr float kRounding = 0x1.8p23F;

// The scale of a token's V is at least kLeastShare of the page's largest scale, which keeps its inverse
// finite.
constexpr float kLeastShare = 0x1p-40F;

KVANT_SIMD_CLONES float largest_magnitude(const float* x, int n) {
  float largest[kReductionLanes] = {};
  int i = 0;
  for (; i + kReductionLanes <= n; i += kReductionLanes) {
    for (int lane = 0; lane < kReductionLanes; ++lane) {
      const float magnitude = std::fabs(x[i + lane]);
      largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
    }
  }
  for (; i < n; ++i) largest[0] = std::max(largest[0], std::fabs(x[i]));
  return *std::max_element(largest, largest + kReductionLanes);
}

// Packs four rows of n values, each times its factor, as the bytes of n words.
KVANT_SIMD_CLONES void pack_rows(const float* x, std::ptrdiff_t stride, const float* factors, int n,
                                 std::uint32_t* words) {
  const float f0 = factors[0], f1 = factors[1], f2 = factors[2], f3 = factors[3];
  const float *x0 = x, *x1 = x + stride, *x2 = x + 2 * stride, *x3 = x + 3 * stride;
  for (int i = 0; i < n; ++i) {
    const std::uint32_t b0 = std::bit_cast<std::uint32_t>(x0[i] * f0 + kRounding),
                        b1 = std::bit_cast<std::uint32_t>(x1[i] * f1 + kRounding),
                        b2 = std::bit_cast<std::uint32_t>(x2[i] * f2 + kRounding),
                        b3 = std::bit_cast<std::uint32_t>(x3[i] * f3 + kRounding);
    words[i] = (b0 & 0xff) | (b1 & 0xff) << 8 | (b2 & 0xff) << 16 | b3 << 24;
  }
}

// Transposes [rows, columns] to [columns, rows]; rows and columns are multiples of 4.
void transpose(const std::uint32_t* from, int rows, int columns, std::uint32_t* to) {
  for (int row = 0; row < rows; row += 4) {
    for (int column = 0; column < columns; ++column) {
      for (int i = 0; i < 4; ++i) to[column * rows + row + i] = from[(row + i) * columns + column];
    }
  }
}

// Sets sums[t] to the sum of the signed bytes of token t. A token has `quads` words, and its next word lies
// kPageTokens words after the previous word.
KVANT_SIMD_CLONES void add_up_bytes(const std::uint32_t* words, int quads, std::int32_t* sums) {
  for (int t = 0; t < kPageTokens; ++t) sums[t] = 0;
  for (int quad = 0; quad < quads; ++quad) {
    const std::uint32_t* of_quad = words + static_cast<std::ptrdiff_t>(quad) * kPageTokens;
    for (int t = 0; t < kPageTokens; ++t) {
      const auto word = static_cast<std::int32_t>(of_quad[t]);
      sums[t] += (word << 24 >> 24) + (word << 16 >> 24) + (word << 8 >> 24) + (word >> 24);
    }
  }
}

float scale_of(const float* row, int d) {
  const float largest = largest_magnitude(row, d);
  return largest == 0 ? 1.0F : largest / kByteNumberMax;
}

// Rounds one row to bytes. n neighbouring channels belong to n neighbouring words.
void pack_row(const float* row, int d, int n, float scale, std::uint32_t* words) {
  const float inverse = 1 / scale, factors[4] = {inverse, inverse, inverse, inverse};
  for (int channel = 0; channel < d; channel += 4 * n)
    pack_rows(row + channel, n, factors, n, words + channel / 4);
}

// Turns bytes with a bias of kTableBias into signed bytes, and signed bytes of queries into biased bytes.
constexpr std::uint32_t kOtherSign = 0x80808080U;
static_assert(kTableBias == 128);

KVANT_SIMD_CLONES void change_sign(std::uint32_t* words, int n) {
  for (int i = 0; i < n; ++i) words[i] ^= kOtherSign;
}

}  // namespace

PromptProducts::PromptProducts(const ByteKernels& kernels)
    : kernels_(&kernels),
      first_(kPageTokens),
      key_scales_(kPageTokens),
      value_scales_(kPageTokens),
      log_scales_(kPageTokens),
      inverse_scales_(kPageTokens),
      scores_(kRowsAtOnce * kPageTokens),
      weights_(kRowsAtOnce * kPageTokens),
      sums_(kRowsAtOnce),
      factors_(kRowsAtOnce) {}

bool PromptProducts::takes(const AttentionRules& rules) const {
  return kernels_->prompts.multiply != nullptr && rules.softmax == Softmax::exact &&
         rules.head_dim % kTileLanes == 0;
}

void PromptProducts::begin(const QueryTile& tile, const AttentionRules& rules) {
  tile_ = &tile;
  rules_ = &rules;
  const int d = rules.head_dim, quads = d / 4;
  queries_.resize(static_cast<std::size_t>(tile.rows()) * quads);
  group_channels_ = 0;
  query_scales_.resize(tile.rows());
  for (int r = 0; r < tile.rows(); ++r)
    query_scales_[r] = scale_of(tile.q.data() + static_cast<std::ptrdiff_t>(r) * d, d);
  values_.resize(static_cast<std::size_t>(kPageTokens) * d);
  words_.resize(static_cast<std::size_t>(kPageTokens) * quads);
  keys_.resize(words_.size());
  mixed_.resize(words_.size());
}

void PromptProducts::prepare_queries(int group_channels) {
  if (group_channels_ == group_channels) return;
  group_channels_ = group_channels;
  const int d = rules_->head_dim, quads = d / 4;
  for (int r = 0; r < tile_->rows(); ++r)
    pack_row(tile_->q.data() + static_cast<std::ptrdiff_t>(r) * d, d, group_channels, query_scales_[r],
             queries_.data() + static_cast<std::ptrdiff_t>(r) * quads);
  change_sign(queries_.data(), static_cast<int>(queries_.size()));
}

// Returns whether a side's codes are bytes times a positive scale of their token, plus an optional offset of
// their channel. If so, sets parameters_.
bool PromptProducts::holds_bytes(const PageView& page, Side which) {
  const PageSide& side = which == Side::key ? page.k : page.v;
  if (page.n_tokens != kPageTokens || side.format->code_order() == CodeOrder::rows) return false;
  const auto scheme = side.format->code_scheme(rules_->head_dim);
  if (!scheme || scheme->meaning != CodeMeaning::state || scheme->token_groups != 1 ||
      scheme->channel_blocks > 1)
    return false;
  read_code_parameters(side, parameters_);
  const std::vector<float>& scale = parameters_.token_scale;
  return parameters_.token_offset.empty() && parameters_.channel_scale.empty() &&
         std::all_of(scale.begin(), scale.end(), [](float x) { return x >= 0; }) &&
         std::any_of(scale.begin(), scale.end(), [](float x) { return x > 0; });
}

void PromptProducts::prepare_keys(const PageView& page) {
  const int d = rules_->head_dim, quads = d / 4;
  if (holds_bytes(page, Side::key)) {
    const CodeScheme scheme = *page.k.format->code_scheme(d);
    prepare_queries(scheme.group_channels);
    kernels_->tiles.expand_for_scores(code_page(page.k, scheme),
                                      reinterpret_cast<std::uint8_t*>(keys_.data()));
    change_sign(keys_.data(), static_cast<int>(keys_.size()));
    std::copy(parameters_.token_scale.begin(), parameters_.token_scale.end(), key_scales_.begin());
    key_offsets_ = parameters_.channel_offset;
    take_off_query_offset();
    return;
  }
  prepare_queries(quads);
  key_offsets_.clear();
  page.k.format->decode(page.k.bytes, page.n_tokens, *page.k.context, values_.data());
  for (int t = 0; t < page.n_tokens; ++t) {
    const float* row = values_.data() + static_cast<std::ptrdiff_t>(t) * d;
    key_scales_[t] = scale_of(row, d);
    pack_row(row, d, quads, key_scales_[t], words_.data() + static_cast<std::ptrdiff_t>(t) * quads);
  }
  std::fill(key_scales_.begin() + page.n_tokens, key_scales_.end(), 0.0F);
  std::fill(words_.begin() + static_cast<std::ptrdiff_t>(page.n_tokens) * quads, words_.end(), 0U);
  transpose(words_.data(), kPageTokens, quads, keys_.data());
  take_off_query_offset();
}

void PromptProducts::take_off_query_offset() {
  add_up_bytes(keys_.data(), rules_->head_dim / 4, first_.data());
  for (std::int32_t& sum : first_) sum *= -128;
}

// Prepares what weights need to include the scales of V. A scale may be raised to a share of the largest
// scale, so all scales are positive.
void PromptProducts::invert_value_scales() {
  const float largest = *std::max_element(value_scales_.begin(), value_scales_.end());
  const float least = largest == 0 ? 1.0F : largest * kLeastShare;
  for (int t = 0; t < kPageTokens; ++t) {
    const float scale = std::max(value_scales_[t], least);
    inverse_scales_[t] = 1 / scale;
    log_scales_[t] = std::log2(scale);
  }
}

void PromptProducts::prepare_values(const PageView& page) {
  const int d = rules_->head_dim, n = page.n_tokens;
  if (holds_bytes(page, Side::value)) {
    const CodePage codes = code_page(page.v, *page.v.format->code_scheme(d));
    kernels_->tiles.expand_for_mix(codes, reinterpret_cast<std::uint8_t*>(mixed_.data()));
    change_sign(mixed_.data(), static_cast<int>(mixed_.size()));
    std::copy(parameters_.token_scale.begin(), parameters_.token_scale.end(), value_scales_.begin());
    value_offsets_ = parameters_.channel_offset;
    invert_value_scales();
    return;
  }
  value_offsets_.clear();
  page.v.format->decode(page.v.bytes, n, *page.v.context, values_.data());
  std::fill(values_.begin() + static_cast<std::ptrdiff_t>(n) * d, values_.end(), 0.0F);
  for (int t = 0; t < kPageTokens; ++t)
    value_scales_[t] =
        largest_magnitude(values_.data() + static_cast<std::ptrdiff_t>(t) * d, d) / kByteNumberMax;
  invert_value_scales();
  for (int t = 0; t < kPageTokens; t += 4)
    pack_rows(values_.data() + static_cast<std::ptrdiff_t>(t) * d, d, inverse_scales_.data() + t, d,
              mixed_.data() + static_cast<std::ptrdiff_t>(t) / 4 * d);
}

// Returns what key_offsets_ add to all scores of a row.
float PromptProducts::key_offset(int row) const {
  const int d = rules_->head_dim;
  const float* q = tile_->q.data() + static_cast<std::ptrdiff_t>(row) * d;
  return key_offsets_.empty() ? 0 : kernels_->dot(q, key_offsets_.data(), d);
}

void PromptProducts::score(Rows rows) {
  const int quads = rules_->head_dim / 4;
  kernels_->prompts.multiply({.rows = reinterpret_cast<const std::uint8_t*>(
                                  queries_.data() + static_cast<std::ptrdiff_t>(rows.first) * quads),
                              .bytes = reinterpret_cast<const std::int8_t*>(keys_.data()),
                              .n_rows = rows.n,
                              .quads = quads,
                              .lanes = kPageTokens,
                              .first = first_.data(),
                              .factor = query_scales_.data() + rows.first,
                              .scale = key_scales_.data(),
                              .offset = nullptr,
                              .lane_offset = nullptr,
                              .before = false,
                              .out = scores_.data()});
}

// Returns whether every query sees every token of the page without a mask, a soft cap or an offset.
bool PromptProducts::all_seen(const PageView& page) const {
  return page.n_tokens == kPageTokens && tile_->offset.empty() && rules_->softcap == 0 &&
         rules_->sliding_window == 0 && page.masked.empty() &&
         page.first_token + kPageTokens <= tile_->first_token + 1;
}

void PromptProducts::weigh(Rows rows, const PageView& page, PartialAttention& partial) {
  const bool plain = all_seen(page);
  for (int i = 0; i < rows.n; ++i) {
    const int r = rows.first + i;
    float* scores = scores_.data() + static_cast<std::ptrdiff_t>(i) * kPageTokens;
    float offset = key_offset(r);
    if (!plain) {
      for (int t = 0; t < page.n_tokens; ++t) scores[t] += offset;
      offset = 0;
      apply_rules(*tile_, page, *rules_, r, scores);
      std::fill(scores + page.n_tokens, scores + kPageTokens, kUnseen);
    }
    const ByteWeighing weighing =
        kernels_->prompts.weigh(scores, log_scales_.data(), inverse_scales_.data(),
                                weights_.data() + static_cast<std::ptrdiff_t>(i) * kPageTokens);
    factors_[i] = sums_[i] = 0;
    if (weighing.sum == 0) continue;
    const float top = weighing.top * std::numbers::ln2_v<float> + offset;
    if (top > partial.max[r]) partial.raise_max(r, top, std::exp(partial.max[r] - top), rules_->head_dim);
    const float unit = std::exp(top - partial.max[r]);
    sums_[i] = weighing.sum * unit;
    partial.sum[r] += sums_[i];
    factors_[i] = unit / kLargestByte;
  }
}

void PromptProducts::mix(Rows rows, PartialAttention& partial) {
  const int d = rules_->head_dim;
  kernels_->prompts.multiply(
      {.rows = weights_.data(),
       .bytes = reinterpret_cast<const std::int8_t*>(mixed_.data()),
       .n_rows = rows.n,
       .quads = kPageTokens / 4,
       .lanes = d,
       .first = nullptr,
       .factor = factors_.data(),
       .scale = nullptr,
       .offset = sums_.data(),
       .lane_offset = value_offsets_.empty() ? nullptr : value_offsets_.data(),
       .before = true,
       .out = partial.accumulator.data() + static_cast<std::ptrdiff_t>(rows.first) * d});
}

void PromptProducts::attend(const PageView& page, PartialAttention& partial) {
  prepare_keys(page);
  prepare_values(page);
  for (int first = 0; first < tile_->rows(); first += kRowsAtOnce) {
    const Rows rows{first, std::min(kRowsAtOnce, tile_->rows() - first)};
    score(rows);
    weigh(rows, page, partial);
    mix(rows, partial);
  }
}

}  // namespace kvant::cpu
