#include "device/cpu/kernels/run_attention.h"

#include <algorithm>
#include <cmath>

#include "base/sas.h"
#include "base/softmax.h"
#include "device/cpu/kernels/score_rules.h"

namespace kvant::cpu {
namespace {

int tokens_of(std::span<const PageView> pages) {
  int n = 0;
  for (const PageView& page : pages) n += page.n_tokens;
  return n;
}

// SAS drops tokens far below the largest score so far, page after page. Returns the sum of the weights, which
// are relative to `max`.
float sas_pages(float* row, std::span<const PageView> pages, float max) {
  float sum = 0, so_far = kUnseen;
  for (const PageView& page : pages) {
    so_far = std::max(so_far, max_row(row, page.n_tokens));
    if (so_far == kUnseen) {
      std::fill(row, row + page.n_tokens, 0.0F);
    } else {
      const float factor = std::exp(so_far - max);
      sum += factor * sas_row(row, page.n_tokens, so_far);
      if (so_far != max) scale_row(row, page.n_tokens, factor);
    }
    row += page.n_tokens;
  }
  return sum;
}

// Adds a run's weights to the sum of the weights so far.
void add_sum(int r, const RunWeights& run, int d, PartialAttention& partial) {
  if (run.max[r] > partial.max[r]) partial.raise_max(r, run.max[r], std::exp(partial.max[r] - run.max[r]), d);
  partial.sum[r] += run.sum[r] * std::exp(run.max[r] - partial.max[r]);
}

bool counts_little(const MatrixView<float>& weights, float threshold) {
  for (int r = 0; r < weights.rows; ++r) {
    if (max_row(weights.row(r), weights.cols) > threshold) return false;
  }
  return true;
}

}  // namespace

// Computes the scores of all pages, and then their weights relative to the largest score.
void RunAttention::score(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                         RunWeights& run) {
  const int n_rows = tile.rows(), n_tokens = tokens_of(pages);
  run.weights.reserve(n_rows * pages.size() *
                      kPageTokens);  // The tail grows, so the buffer has room for whole pages.
  run.weights.resize(static_cast<std::size_t>(n_rows) * n_tokens);
  run.max.resize(n_rows);
  run.sum.resize(n_rows);
  products_.begin({tile.q.data(), n_rows, rules.head_dim}, tile.q_scale, rules.products);
  int first = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const PageView& page = pages[i];
    const MatrixView<float> scores{run.weights.data() + first, n_rows, page.n_tokens, n_tokens};
    const PageSide* next = i + 1 < pages.size() ? &pages[i + 1].k : &pages[0].v;
    products_.score(page.k, page.n_tokens, next, scores);
    for (int r = 0; r < n_rows; ++r) apply_rules(tile, page, rules, r, scores.row(r));
    first += page.n_tokens;
  }
  for (int r = 0; r < n_rows; ++r) {
    float* row = run.weights.data() + static_cast<std::ptrdiff_t>(r) * n_tokens;
    run.max[r] = max_row(row, n_tokens);
    run.sum[r] = 0;
    if (run.max[r] == kUnseen) {
      std::fill(row, row + n_tokens, 0.0F);
    } else {
      run.sum[r] = rules.softmax == Softmax::exact ? exp_row(row, n_tokens, run.max[r])
                                                   : sas_pages(row, pages, run.max[r]);
    }
  }
}

void RunAttention::weigh(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                         PartialAttention& partial) {
  score(tile, pages, rules, partial.kept);
  for (int r = 0; r < tile.rows(); ++r) {
    if (partial.kept.max[r] != kUnseen) add_sum(r, partial.kept, rules.head_dim, partial);
  }
}

// reads(page, weights) returns whether V of the page is read. V of an unread page is not prefetched either.
template <class Reads>
void RunAttention::mix(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       RunWeights& run, PartialAttention& partial, const Reads& reads) {
  const MatrixView<float> weights{run.weights.data(), tile.rows(), tokens_of(pages)};
  for (int r = 0; r < weights.rows; ++r) {
    if (run.max[r] == kUnseen) continue;  // All weights are 0.
    add_sum(r, run, rules.head_dim, partial);
    if (run.max[r] != partial.max[r])
      scale_row(weights.row(r), weights.cols, std::exp(run.max[r] - partial.max[r]));
  }
  const MatrixView<float> out{partial.accumulator.data(), tile.rows(), rules.head_dim};
  products_.begin({tile.q.data(), tile.rows(), rules.head_dim}, tile.q_scale, rules.products);
  read_.clear();
  read_.reserve(pages.size());
  int first = 0;
  for (const PageView& page : pages) {
    const MatrixView<float> of_page{weights.data + first, weights.rows, page.n_tokens, weights.stride};
    if (reads(page, of_page)) read_.push_back({&page.v, of_page});
    first += page.n_tokens;
  }
  for (std::size_t i = 0; i < read_.size(); ++i) {
    const auto& [v, of_page] = read_[i];
    products_.mix(*v, of_page.cols, i + 1 < read_.size() ? read_[i + 1].v : nullptr, of_page, out);
  }
  products_.end(out);
}

SkipCount RunAttention::attend(const QueryTile& tile, std::span<const PageView> pages,
                               const AttentionRules& rules, const SkipRule* skip, PartialAttention& partial) {
  SkipCount count;
  if (skip == nullptr) score(tile, pages, rules, run_);
  mix(tile, pages, rules, skip == nullptr ? run_ : partial.kept, partial,
      [&](const PageView& page, const MatrixView<float>& weights) {
        return skip == nullptr || skip_tokens(tile, page, rules, *skip, weights, count);
      });
  return count;
}

void RunAttention::attend_but(UnreadPages& unread, const QueryTile& tile, std::span<const PageView> pages,
                              const AttentionRules& rules, PartialAttention& partial) {
  score(tile, pages, rules, run_);
  mix(tile, pages, rules, run_, partial, [&](const PageView& page, const MatrixView<float>& weights) {
    if (page.is_protected || page.v.format->plain()) return true;
    const bool leaves_out = counts_little(weights, unread.threshold);
    ++unread.seen;
    unread.unread += leaves_out ? 1 : 0;
    return !leaves_out;
  });
}

}  // namespace kvant::cpu
