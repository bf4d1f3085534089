#include "attention/reference/tile_attention.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/softmax.h"

namespace kvant {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void decode(const PageSide& side, int n_tokens, std::vector<float>& values) {
  side.format->decode(side.bytes, n_tokens, *side.context, values.data());
}

// scores[r, t] = softcap(q_r . k_t + offset_r), [rows, n_tokens] with row stride kPageTokens.
void score_page(const QueryTile& tile, const PageView& page, int d, float softcap, TileScratch& scratch) {
  decode(page.k, page.n_tokens, scratch.page);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tile.rows(), page.n_tokens, d, 1.0F, tile.q.data(), d,
              scratch.page.data(), d, 0.0F, scratch.scores.data(), kPageTokens);
  if (tile.offset.empty() && softcap <= 0) return;
  for (int r = 0; r < tile.rows(); ++r) {
    float* scores = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
    for (int t = 0; t < page.n_tokens; ++t) {
      if (!tile.offset.empty()) scores[t] += tile.offset[r];
      if (softcap > 0) scores[t] = softcap * std::tanh(scores[t] / softcap);
    }
  }
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
void weigh_row(int r, int n_tokens, int d, float* scores, PartialAttention& partial) {
  const float page_max = max_row(scores, n_tokens);
  if (page_max == kMasked) {
    std::fill(scores, scores + n_tokens, 0.0F);
    return;
  }
  if (page_max > partial.max[r]) {
    const float rescale = std::exp(partial.max[r] - page_max);
    partial.sum[r] *= rescale;
    scale_row(partial.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, rescale);
    partial.max[r] = page_max;
  }
  partial.sum[r] += exp_row(scores, n_tokens, partial.max[r]);
}

}  // namespace

void PartialAttention::reset(int rows, int d) {
  max.assign(rows, kMasked);
  sum.assign(rows, 0.0F);
  accumulator.assign(static_cast<std::size_t>(rows) * d, 0.0F);
}

void PartialAttention::merge(const PartialAttention& other, int d) {
  for (std::size_t r = 0; r < max.size(); ++r) {
    if (other.max[r] == kMasked) continue;
    const float together = std::max(max[r], other.max[r]);
    const float mine = std::exp(max[r] - together), theirs = std::exp(other.max[r] - together);
    float* row = accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    scale_row(row, d, mine);
    add_scaled_row(row, other.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, theirs);
    sum[r] = sum[r] * mine + other.sum[r] * theirs;
    max[r] = together;
  }
}

void attend_pages(const QueryTile& tile, std::span<const PageView> pages, int head_dim, int sliding_window,
                  float softcap, TileScratch& scratch, PartialAttention& partial) {
  const int rows = tile.rows();
  scratch.page.resize(static_cast<std::size_t>(kPageTokens) * head_dim);
  scratch.scores.resize(static_cast<std::size_t>(rows) * kPageTokens);
  for (const PageView& page : pages) {
    score_page(tile, page, head_dim, softcap, scratch);
    for (int r = 0; r < rows; ++r) {
      float* scores = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
      mask_row(page, tile.first_token + r % tile.n_queries, sliding_window, scores);
      weigh_row(r, page.n_tokens, head_dim, scores, partial);
    }
    decode(page.v, page.n_tokens, scratch.page);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, head_dim, page.n_tokens, 1.0F,
                scratch.scores.data(), kPageTokens, scratch.page.data(), head_dim, 1.0F,
                partial.accumulator.data(), head_dim);
  }
}

}  // namespace kvant
