#include "attention/reference/tile_attention.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/reference/integer_products.h"
#include "attention/sas.h"
#include "attention/softmax.h"

namespace kvant {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float* score_row(TileScratch& scratch, int r) {
  return scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
}

void decode(const PageSide& side, int n_tokens, std::vector<float>& values) {
  side.format->decode(side.bytes, n_tokens, *side.context, values.data());
}

// Takes protected tokens, and those that query `token` may not see, out of its scores.
void mask_row(const PageView& page, int token, int sliding_window, float* scores) {
  if (page.kept) return;
  const int end = std::clamp(token + 1 - page.first_token, 0, page.n_tokens);
  std::fill(scores + end, scores + page.n_tokens, kMasked);
  if (sliding_window > 0) {
    const int begin = std::clamp(token + 1 - sliding_window - page.first_token, 0, page.n_tokens);
    std::fill(scores, scores + begin, kMasked);
  }
  if (page.masked.empty()) return;
  for (int t = 0; t < page.n_tokens; ++t) {
    if (page.masked.test(t)) scores[t] = kMasked;
  }
}

// Turns a row of scores into weights relative to the row's running maximum, and rescales what came before.
void weigh_row(int r, int n_tokens, const AttentionRules& rules, float* scores, PartialAttention& partial) {
  const float page_max = max_row(scores, n_tokens);
  if (page_max == kMasked) {
    std::fill(scores, scores + n_tokens, 0.0F);
    return;
  }
  if (page_max > partial.max[r]) {
    const float fall = partial.max[r] - page_max;
    const float rescale = rules.softmax == Softmax::sas_paper ? sas_exp(fall) : std::exp(fall);
    partial.sum[r] *= rescale;
    scale_row(partial.accumulator.data() + static_cast<std::ptrdiff_t>(r) * rules.head_dim, rules.head_dim,
              rescale);
    partial.max[r] = page_max;
  }
  partial.sum[r] += rules.softmax == Softmax::exact ? exp_row(scores, n_tokens, partial.max[r])
                                                    : sas_row(scores, n_tokens, partial.max[r]);
}

bool sees(const PageView& page, int t, int token, int sliding_window) {
  if (page.kept) return true;
  const int distance = token - (page.first_token + t);
  return distance >= 0 && (sliding_window == 0 || distance < sliding_window) && !page.masked.test(t);
}

// Zeroes the weights of tokens that the rule skips, query by query across the heads of the group.
void skip_tokens(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                 const SkipRule& rule, TileScratch& scratch, SkipCount& count) {
  for (int i = 0; i < tile.n_queries; ++i) {
    for (int t = 0; t < page.n_tokens; ++t) {
      if (!sees(page, t, tile.token(i), rules.sliding_window)) continue;
      bool small = true;
      double mass = 0;
      for (int r = i; r < tile.rows(); r += tile.n_queries) {
        const double weight = score_row(scratch, r)[t] / static_cast<double>(rule.total->sum[r]);
        small = small && weight < rule.tau;
        mass += weight;
      }
      ++count.seen;
      if (!small) continue;
      ++count.skipped;
      count.mass += mass / tile.group;
      for (int r = i; r < tile.rows(); r += tile.n_queries) score_row(scratch, r)[t] = 0;
    }
  }
}

// accumulator += weights x V, [rows, d].
void mix_page(const QueryTile& tile, const PageView& page, const AttentionRules& rules, TileScratch& scratch,
              PartialAttention& partial) {
  const int d = rules.head_dim;
  if (rules.products == Products::integer) {
    mix_integers(tile.rows(), page, d, scratch, partial.accumulator.data());
    return;
  }
  decode(page.v, page.n_tokens, scratch.page);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, tile.rows(), d, page.n_tokens, 1.0F,
              scratch.scores.data(), kPageTokens, scratch.page.data(), d, 1.0F, partial.accumulator.data(),
              d);
}

}  // namespace

void score_page(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                TileScratch& scratch) {
  const int d = rules.head_dim;
  scratch.page.resize(static_cast<std::size_t>(kPageTokens) * d);
  scratch.scores.resize(static_cast<std::size_t>(tile.rows()) * kPageTokens);
  if (rules.products == Products::integer) {
    score_integers(tile, page, d, scratch);
  } else {
    decode(page.k, page.n_tokens, scratch.page);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tile.rows(), page.n_tokens, d, 1.0F, tile.q.data(),
                d, scratch.page.data(), d, 0.0F, scratch.scores.data(), kPageTokens);
  }
  for (int r = 0; r < tile.rows(); ++r) {
    float* scores = score_row(scratch, r);
    for (int t = 0; t < page.n_tokens && !tile.offset.empty(); ++t) scores[t] += tile.offset[r];
    for (int t = 0; t < page.n_tokens && rules.softcap > 0; ++t) {
      scores[t] = rules.softcap * std::tanh(scores[t] / rules.softcap);
    }
    mask_row(page, tile.token(r), rules.sliding_window, scores);
  }
}

SkipCount attend_pages(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, TileScratch& scratch, PartialAttention& partial) {
  SkipCount count;
  for (const PageView& page : pages) {
    score_page(tile, page, rules, scratch);
    for (int r = 0; r < tile.rows(); ++r) weigh_row(r, page.n_tokens, rules, score_row(scratch, r), partial);
    if (skip != nullptr) skip_tokens(tile, page, rules, *skip, scratch, count);
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
