#include "device/cpu/kernels/tile_attention.h"

#include <algorithm>
#include <cmath>

#include "base/gemm.h"
#include "base/sas.h"
#include "base/softmax.h"
#include "device/cpu/kernels/integer_products.h"
#include "device/cpu/kernels/score_rules.h"

namespace kvant {
namespace {

float* score_row(TileScratch& scratch, int r) {
  return scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
}

void decode(const PageSide& side, int n_tokens, std::vector<float>& values) {
  side.format->decode(side.bytes, n_tokens, *side.context, values.data());
}

// Adds weights x V to the accumulator, [rows, d].
void mix_page(const QueryTile& tile, const PageView& page, const AttentionRules& rules, TileScratch& scratch,
              PartialAttention& partial) {
  const int d = rules.head_dim;
  if (rules.products == Products::integer) {
    mix_integers(tile.rows(), page, d, scratch, partial.accumulator.data());
    return;
  }
  decode(page.v, page.n_tokens, scratch.page);
  gemm(tile.rows(), d, page.n_tokens, row_major(scratch.scores.data(), kPageTokens),
       row_major(scratch.page.data(), d), /*accumulate=*/true, partial.accumulator.data(), d);
}

}  // namespace

void weigh_row(int r, int n_tokens, const AttentionRules& rules, float* scores, PartialAttention& partial) {
  const float page_max = max_row(scores, n_tokens);
  if (page_max == kUnseen) {
    std::fill(scores, scores + n_tokens, 0.0F);
    return;
  }
  if (page_max > partial.max[r]) {
    const float fall = partial.max[r] - page_max;
    const float rescale = rules.softmax == Softmax::sas_paper ? sas_exp(fall) : std::exp(fall);
    partial.raise_max(r, page_max, rescale, rules.head_dim);
  }
  partial.sum[r] += rules.softmax == Softmax::exact ? exp_row(scores, n_tokens, partial.max[r])
                                                    : sas_row(scores, n_tokens, partial.max[r]);
}

void score_page(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                TileScratch& scratch) {
  const int d = rules.head_dim;
  scratch.page.resize(static_cast<std::size_t>(kPageTokens) * d);
  scratch.scores.resize(static_cast<std::size_t>(tile.rows()) * kPageTokens);
  if (rules.products == Products::integer) {
    score_integers(tile, page, d, scratch);
  } else {
    decode(page.k, page.n_tokens, scratch.page);
    gemm(tile.rows(), page.n_tokens, d, row_major(tile.q.data(), d), transposed(scratch.page.data(), d),
         /*accumulate=*/false, scratch.scores.data(), kPageTokens);
  }
  for (int r = 0; r < tile.rows(); ++r) apply_rules(tile, page, rules, r, score_row(scratch, r));
}

SkipCount attend_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, TileScratch& scratch, PartialAttention& partial) {
  SkipCount count;
  for (const PageView& page : pages) {
    score_page(tile, page, rules, scratch);
    for (int r = 0; r < tile.rows(); ++r) weigh_row(r, page.n_tokens, rules, score_row(scratch, r), partial);
    const MatrixView<float> weights{scratch.scores.data(), tile.rows(), kPageTokens};
    if (skip != nullptr && !skip_tokens(tile, page, rules, *skip, weights, count)) continue;
    mix_page(tile, page, rules, scratch, partial);
  }
  return count;
}

void weigh_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                 TileScratch& scratch, PartialAttention& partial) {
  for (const PageView& page : pages) {
    score_page(tile, page, rules, scratch);
    for (int r = 0; r < tile.rows(); ++r) weigh_row(r, page.n_tokens, rules, score_row(scratch, r), partial);
  }
}

}  // namespace kvant
