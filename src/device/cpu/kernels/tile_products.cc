#include "device/cpu/kernels/tile_products.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "base/simd_clones.h"
#include "device/cpu/kernels/code_page.h"
#include "device/cpu/kernels/parameter_part.h"
#include "device/cpu/kernels/score_rules.h"
#include "format/code_order.h"

namespace kvant::cpu {
namespace {

// The number is a multiple of the rows that kernels take at once. The scores of these rows, 24 KiB, stay in
// the first-level cache.
constexpr int kRows = 48;

// Integer sums may wrap around on the way, but their final values fit. A sum covers a query's channels or a
// page's tokens. Each term is a number of a query or a weight, times a byte minus bias of at most 255 in
// magnitude. Products of two 16-bit words, or of four bytes, are added without saturation.
constexpr bool fits(int n, int number) {
  return std::int64_t{n} * 255 * number <= std::numeric_limits<std::int32_t>::max();
}
static_assert(fits(kNarrowHeadDim, max_query_number(kNarrowHeadDim)) &&
              fits(kMaxHeadDim, max_query_number(kMaxHeadDim)) && fits(kPageTokens, kMaxNumber));

bool is_exact(const PageSide& side) {
  if (side.format->code_order() == CodeOrder::rows) return false;
  const int d = side.context->head_dim;
  const auto scheme = side.format->code_scheme(d);
  const bool exact = scheme->meaning == CodeMeaning::number || scheme->meaning == CodeMeaning::state;
  return exact && d / std::max(1, scheme->token_groups) % kTileLanes == 0;
}

// Half of the numbers' range is subtracted before multiplying, so the rounding errors of queries and weights
// grow only with the distance from the middle. The offsets absorb the subtracted half. Returns the subtracted
// half, or 0 if the offsets cannot absorb the half.
int center_numbers(const CodeScheme& scheme, CodeParameters& parameters) {
  const bool by_token = !parameters.token_scale.empty(), by_channel = !parameters.channel_scale.empty();
  if (by_token == by_channel) return 0;
  const std::vector<float>& scale = by_token ? parameters.token_scale : parameters.channel_scale;
  std::vector<float>& offset = by_token ? parameters.token_offset : parameters.channel_offset;
  offset.resize(scale.size());
  const int half = 1 << (scheme.bits - 1);
  for (std::size_t i = 0; i < scale.size(); ++i) offset[i] += static_cast<float>(half) * scale[i];
  return half;
}

// Returns the largest product of a weight and the magnitude of its token's scale. With separate maxima, a
// token of large scale and small weight would make the rounding of all tokens coarser. n must be a multiple
// of kReductionLanes.
KVANT_SIMD_CLONES float largest_product(const float* weights, const float* scale, int n) {
  float largest[kReductionLanes] = {};
  for (int t = 0; t < n; t += kReductionLanes) {
    for (int lane = 0; lane < kReductionLanes; ++lane) {
      const float product = weights[t + lane] * std::fabs(scale[t + lane]);
      largest[lane] = product > largest[lane] ? product : largest[lane];
    }
  }
  return *std::max_element(largest, largest + kReductionLanes);
}

}  // namespace

TileProducts::TileProducts(const ByteKernels& kernels)
    : kernels_(&kernels), scores_(kRows * kPageTokens), bounds_(kRows), weights_(kRows), factors_(kRows) {}

TokenParameters TileProducts::Operand::tokens(int group) const {
  return {part(parameters.token_scale, group, kPageTokens),
          part(parameters.token_offset, group, kPageTokens)};
}

void TileProducts::begin(const QueryTile& tile, const AttentionRules& rules) {
  tile_ = &tile;
  rules_ = &rules;
  queries_.resize(tile.rows());
  prepared_ = false;
  summed_groups_ = 0;
}

bool TileProducts::takes(const PageView& page) const {
  return kernels_->tiles.multiply != nullptr && page.n_tokens == kPageTokens && is_exact(page.k) &&
         is_exact(page.v);
}

void TileProducts::expand(const PageSide& side, Side which, Operand& operand) {
  const PageContext& context = *side.context;
  operand.scheme = *side.format->code_scheme(context.head_dim);
  read_code_parameters(side, operand.parameters);
  const bool is_number = operand.scheme.meaning == CodeMeaning::number;
  operand.bias = is_number ? center_numbers(operand.scheme, operand.parameters) : kTableBias;
  if (kernels_->tiles.signed_codes && (!is_number || operand.scheme.bits == 8)) operand.bias -= kTableBias;
  operand.bytes.resize(static_cast<std::size_t>(kPageTokens) * context.head_dim);
  const CodePage page = code_page(side, operand.scheme);
  const TileKernels& tiles = kernels_->tiles;
  (which == Side::key ? tiles.expand_for_scores : tiles.expand_for_mix)(page, operand.bytes.data());
}

// Without scales of channels, all pages share the prepared queries.
void TileProducts::prepare_queries(Rows rows, const float* channel_scale) {
  const int d = rules_->head_dim, channels = k_.scheme.group_channels;
  for (int r = rows.first; r < rows.first + rows.n; ++r) {
    kernels_->prepare_query(tile_->q.data() + static_cast<std::ptrdiff_t>(r) * d, channel_scale, channels,
                            d / (kLaneGroups * channels), {.sums = true}, queries_[r]);
  }
}

void TileProducts::sum_queries() {
  const int n_groups = k_.groups(), channels = rules_->head_dim / n_groups;
  if (summed_groups_ == n_groups) return;
  query_sums_.resize(static_cast<std::size_t>(tile_->rows()) * n_groups);
  for (std::size_t i = 0; i < query_sums_.size(); ++i)
    query_sums_[i] = kernels_->sum(tile_->q.data() + static_cast<std::ptrdiff_t>(i) * channels, channels);
  summed_groups_ = n_groups;
}

void TileProducts::score(Rows rows) {
  const int d = rules_->head_dim, n_groups = k_.groups(), block_tokens = kPageTokens / k_.blocks();
  const int group_quads = d / 4 / n_groups, block_quads = k_.scheme.group_channels;
  for (int block = 0; block < k_.blocks(); ++block) {
    const float* scale = part(k_.parameters.channel_scale, block, d);
    const float* offset = part(k_.parameters.channel_offset, block, d);
    if (scale != nullptr) prepare_queries(rows, scale);
    for (int group = 0; group < n_groups; ++group) {
      const TokenParameters tokens = k_.tokens(group);
      const int first_quad = group * group_quads, end_quad = first_quad + group_quads;
      for (int i = 0; i < rows.n; ++i) {
        const int r = rows.first + i;
        const ByteQuery& query = queries_[r];
        const auto* sums = query.block_sums;
        const bool adds_offset = offset != nullptr && group == 0;
        factors_[i] = {
            .bias = k_.bias == 0 ? 0
                                 : k_.bias * std::accumulate(sums + first_quad / block_quads,
                                                             sums + end_quad / block_quads, 0),
            .unit = query.unit,
            .offset =
                tokens.offset == nullptr ? 0 : query_sums_[static_cast<std::size_t>(r) * n_groups + group],
            .constant = adds_offset
                            ? kernels_->dot(tile_->q.data() + static_cast<std::ptrdiff_t>(r) * d, offset, d)
                            : 0};
      }
      kernels_->tiles.multiply({.bytes = k_.bytes.data(),
                                .lanes = kPageTokens,
                                .first_quad = first_quad,
                                .end_quad = end_quad,
                                .first_lane = block * block_tokens,
                                .end_lane = (block + 1) * block_tokens,
                                .n_rows = rows.n,
                                .numbers = queries_.data() + rows.first,
                                .factors = factors_.data(),
                                .before = group > 0,
                                .scale = tokens.scale,
                                .lane_offset = tokens.offset,
                                .out = scores_.data(),
                                .stride = kPageTokens});
    }
  }
}

// Returns whether every query sees every token of the page without a mask, a soft cap or an offset.
bool TileProducts::all_seen(const PageView& page) const {
  return tile_->offset.empty() && rules_->softcap == 0 && rules_->sliding_window == 0 &&
         page.masked.empty() && page.first_token + kPageTokens <= tile_->first_token + 1;
}

// Turns scores into weights relative to the running maximum of their row. If the maximum rises, earlier
// results are rescaled.
void TileProducts::weigh(Rows rows, const PageView& page, PartialAttention& partial) {
  const bool plain = all_seen(page);
  for (int i = 0; i < rows.n; ++i) {
    const int r = rows.first + i;
    float* scores = scores_.data() + static_cast<std::ptrdiff_t>(i) * kPageTokens;
    if (!plain) apply_rules(*tile_, page, *rules_, r, scores);
    const float page_max = kernels_->tiles.largest(scores);
    if (page_max == kUnseen) {
      std::fill(scores, scores + kPageTokens, 0.0F);
      bounds_[i] = 0;
      continue;
    }
    if (page_max > partial.max[r])
      partial.raise_max(r, page_max, std::exp(partial.max[r] - page_max), rules_->head_dim);
    partial.sum[r] += kernels_->tiles.exponentials(scores, partial.max[r]);
    bounds_[i] = std::exp(page_max - partial.max[r]);
  }
}

void TileProducts::mix(Rows rows, PartialAttention& partial) {
  const int d = rules_->head_dim, n_groups = v_.groups(), group_channels = d / n_groups;
  const int block_tokens = kPageTokens / v_.blocks();
  for (int block = 0; block < v_.blocks(); ++block) {
    const int first = block * block_tokens, end = first + block_tokens;
    for (int group = 0; group < n_groups; ++group) {
      const TokenParameters tokens = v_.tokens(group);
      for (int i = 0; i < rows.n; ++i) {
        const float* weights = scores_.data() + static_cast<std::ptrdiff_t>(i) * kPageTokens;
        const float bound = tokens.scale == nullptr
                                ? bounds_[i]
                                : largest_product(weights + first, tokens.scale + first, block_tokens);
        const WeightSums sums =
            kernels_->tiles.prepare_weights(weights, tokens, first, end, bound, weights_[i]);
        factors_[i] = {.bias = v_.bias * weights_[i].block_sums[0],
                       .unit = weights_[i].unit,
                       .offset = sums.weights,
                       .constant = sums.offsets};
      }
      kernels_->tiles.multiply(
          {.bytes = v_.bytes.data(),
           .lanes = d,
           .first_quad = first / 4,
           .end_quad = end / 4,
           .first_lane = group * group_channels,
           .end_lane = (group + 1) * group_channels,
           .n_rows = rows.n,
           .numbers = weights_.data(),
           .factors = factors_.data(),
           .before = true,
           .scale = part(v_.parameters.channel_scale, block, d),
           .lane_offset = part(v_.parameters.channel_offset, block, d),
           .out = partial.accumulator.data() + static_cast<std::ptrdiff_t>(rows.first) * d,
           .stride = d});
    }
  }
}

void TileProducts::attend(const PageView& page, PartialAttention& partial) {
  expand(page.k, Side::key, k_);
  expand(page.v, Side::value, v_);
  if (k_.parameters.channel_scale.empty()) {
    if (!prepared_) prepare_queries({0, tile_->rows()}, nullptr);
    prepared_ = true;
  } else {
    prepared_ = false;
  }
  if (!k_.parameters.token_offset.empty()) sum_queries();
  for (int first = 0; first < tile_->rows(); first += kRows) {
    const Rows rows{first, std::min(kRows, tile_->rows() - first)};
    score(rows);
    weigh(rows, page, partial);
    mix(rows, partial);
  }
}

}  // namespace kvant::cpu
