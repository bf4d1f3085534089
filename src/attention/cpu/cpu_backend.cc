// The CPU backend: tokens of an answer attend by integer products of the codes, scores of a whole run of
// pages before V of the first. Tiles of many queries decode each page once for all of them, as the reference
// does: there the matrix products dominate.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/cpu/page_products.h"
#include "attention/layer_loop.h"
#include "attention/reference/tile_attention.h"
#include "attention/sas.h"
#include "attention/score_rules.h"
#include "attention/softmax.h"
#include "format/code_order.h"

namespace kvant {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

int tokens_of(std::span<const PageView> pages) {
  int n = 0;
  for (const PageView& page : pages) n += page.n_tokens;
  return n;
}

class CpuAttention final : public PageAttention {
 public:
  explicit CpuAttention(const cpu::ByteKernels& kernels) : kernels_(kernels) { openblas_set_num_threads(1); }

  void prepare(int n_threads) override {
    while (std::ssize(threads_) < n_threads) threads_.emplace_back(kernels_);
  }

  SkipCount attend_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                         const AttentionRules& rules, const SkipRule* skip,
                         PartialAttention& partial) override {
    Buffers& buffers = threads_[thread];
    if (!one_token(tile, rules)) return kvant::attend_pages(tile, pages, rules, skip, buffers.tile, partial);
    if (skip == nullptr) weigh(tile, pages, rules, buffers, partial, buffers.weights, buffers.max);
    std::vector<float>& weights = skip == nullptr ? buffers.weights : partial.kept_weights;
    const std::vector<float>& max = skip == nullptr ? buffers.max : partial.kept_max;
    const MatrixView<float> rows{weights.data(), tile.rows(), tokens_of(pages)};
    for (int r = 0; r < rows.rows; ++r) {
      if (max[r] == kNothing) continue;  // all weights are 0
      if (max[r] != partial.max[r]) scale_row(rows.row(r), rows.cols, std::exp(max[r] - partial.max[r]));
      if (skip != nullptr) partial.sum[r] += std::accumulate(rows.row(r), rows.row(r) + rows.cols, 0.0F);
    }
    return mix(tile, pages, rules, skip, rows, buffers.products, partial);
  }

  void weigh_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                   const AttentionRules& rules, PartialAttention& partial) override {
    Buffers& buffers = threads_[thread];
    if (!one_token(tile, rules)) return kvant::weigh_pages(tile, pages, rules, buffers.tile, partial);
    weigh(tile, pages, rules, buffers, partial, partial.kept_weights, partial.kept_max);
  }

  PageOrder page_order() const override { return PageOrder::lanes; }

  std::string kernel_name(const Plan& plan, int layer, int kv_head, Side side) const override {
    const Format& format = *plan.head(layer, kv_head).side(side).sealed;
    if (format.code_order() == CodeOrder::rows) return fmt::format("cpu/{}/decoded", kernels_.name);
    static constexpr const char* kMeanings[] = {"numbers", "levels", "states", "vectors"};
    const auto scheme = format.code_scheme(plan.geometry.head_dim);
    return fmt::format("cpu/{}/{}{}", kernels_.name, kMeanings[static_cast<int>(scheme->meaning)],
                       scheme->bits);
  }

 private:
  struct Buffers {
    explicit Buffers(const cpu::ByteKernels& kernels) : products(kernels) {}
    cpu::PageProducts products;
    std::vector<float> weights, max;  // of a run
    TileScratch tile;                 // of many queries
  };

  // Algorithm 1 as printed rescales from page to page: its error is the reference's business.
  static bool one_token(const QueryTile& tile, const AttentionRules& rules) {
    return tile.n_queries == 1 && rules.softmax != Softmax::sas_paper;
  }

  // weights[r, t] = exp(score - max[r]) over the tokens of all pages, max[r] their largest score; and adds
  // both to partial.
  static void weigh(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                    Buffers& buffers, PartialAttention& partial, std::vector<float>& weights,
                    std::vector<float>& max) {
    const int n_rows = tile.rows(), n_tokens = tokens_of(pages), d = rules.head_dim;
    weights.resize(static_cast<std::size_t>(n_rows) * n_tokens);
    max.resize(n_rows);
    buffers.products.begin({tile.q.data(), n_rows, d}, tile.q_scale, rules.products);
    int first = 0;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const PageView& page = pages[i];
      const MatrixView<float> scores{weights.data() + first, n_rows, page.n_tokens, n_tokens};
      const PageSide* next = i + 1 < pages.size() ? &pages[i + 1].k : nullptr;
      buffers.products.score(page.k, page.n_tokens, next, scores);
      for (int r = 0; r < n_rows; ++r) apply_rules(tile, page, rules, r, scores.row(r));
      first += page.n_tokens;
    }
    for (int r = 0; r < n_rows; ++r) {
      float* row = weights.data() + static_cast<std::ptrdiff_t>(r) * n_tokens;
      max[r] = max_row(row, n_tokens);
      if (max[r] == kNothing) {
        std::fill(row, row + n_tokens, 0.0F);
        continue;
      }
      const float sum =
          rules.softmax == Softmax::exact ? exp_row(row, n_tokens, max[r]) : sas_row(row, n_tokens, max[r]);
      add_sum(r, max[r], sum, d, partial);
    }
  }

  // A run's weights, whose largest is exp(0), join those that were seen before.
  static void add_sum(int r, float max, float sum, int d, PartialAttention& partial) {
    if (max > partial.max[r]) {
      const float rescale = std::exp(partial.max[r] - max);
      partial.sum[r] *= rescale;
      scale_row(partial.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, rescale);
      partial.max[r] = max;
    }
    partial.sum[r] += sum * std::exp(max - partial.max[r]);
  }

  static SkipCount mix(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, const MatrixView<float>& weights, cpu::PageProducts& products,
                       PartialAttention& partial) {
    SkipCount count;
    const MatrixView<float> out{partial.accumulator.data(), tile.rows(), rules.head_dim};
    products.begin({tile.q.data(), tile.rows(), rules.head_dim}, tile.q_scale, rules.products);
    int first = 0;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const PageView& page = pages[i];
      const MatrixView<float> of_page{weights.data + first, weights.rows, page.n_tokens, weights.stride};
      if (skip != nullptr) skip_tokens(tile, page, rules, *skip, of_page, count);
      const PageSide* next = i + 1 < pages.size() && skip == nullptr ? &pages[i + 1].v : nullptr;
      products.mix(page.v, page.n_tokens, next, of_page, out);
      first += page.n_tokens;
    }
    products.end(out);
    return count;
  }

  const cpu::ByteKernels& kernels_;
  std::vector<Buffers> threads_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cpu_backend() {
  return make_layer_loop(std::make_unique<CpuAttention>(cpu::best_kernels()));
}

std::unique_ptr<AttentionBackend> make_cpu_backend(const std::string& kernels) {
  const cpu::ByteKernels* found = cpu::find_kernels(kernels.c_str());
  if (found == nullptr) return nullptr;
  return make_layer_loop(std::make_unique<CpuAttention>(*found));
}

}  // namespace kvant
