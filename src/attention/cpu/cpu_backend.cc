// Implements attention on the CPU with the kernels of byte_kernels.h. Decoded tokens attend by integer
// products of the pages' codes: the scores of a whole run of pages are computed before any V is read. For
// tiles of many queries, each page is expanded to bytes once for all queries, or decoded as in the reference
// backend. The matrix products dominate the cost of such tiles.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/cpu/page_products.h"
#include "attention/cpu/prompt_products.h"
#include "attention/cpu/tile_products.h"
#include "attention/flashq.h"
#include "attention/page_attention.h"
#include "attention/sas.h"
#include "attention/score_rules.h"
#include "attention/softmax.h"
#include "attention/tile_attention.h"
#include "format/code_order.h"

namespace kvant {
namespace {

int tokens_of(std::span<const PageView> pages) {
  int n = 0;
  for (const PageView& page : pages) n += page.n_tokens;
  return n;
}

class CpuAttention final : public PageAttention {
 public:
  explicit CpuAttention(const cpu::ByteKernels& kernels) : kernels_(kernels) {}

  void prepare(int n_threads) override {
    while (std::ssize(threads_) < n_threads) threads_.emplace_back(kernels_);
  }

  SkipCount attend_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                         const AttentionRules& rules, const SkipRule* skip,
                         PartialAttention& partial) override {
    Buffers& buffers = threads_[thread];
    if (rules.in_bytes) {
      attend_bytes(tile, pages, rules, buffers, partial);
      return {};
    }
    if (!one_token(tile, rules)) return attend_tile(tile, pages, rules, skip, buffers, partial);
    if (skip == nullptr) weigh(tile, pages, rules, buffers.products, buffers.run);
    RunWeights& run = skip == nullptr ? buffers.run : partial.kept;
    const MatrixView<float> rows{run.weights.data(), tile.rows(), tokens_of(pages)};
    for (int r = 0; r < rows.rows; ++r) {
      // All weights of the row are 0.
      if (run.max[r] == kUnseen) continue;
      add_sum(r, run, rules.head_dim, partial);
      if (run.max[r] != partial.max[r])
        scale_row(rows.row(r), rows.cols, std::exp(run.max[r] - partial.max[r]));
    }
    return mix(tile, pages, rules, skip, rows, buffers, partial);
  }

  void weigh_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                   const AttentionRules& rules, PartialAttention& partial) override {
    Buffers& buffers = threads_[thread];
    if (!one_token(tile, rules)) return kvant::weigh_pages(tile, pages, rules, buffers.tile, partial);
    weigh(tile, pages, rules, buffers.products, partial.kept);
    for (int r = 0; r < tile.rows(); ++r) {
      if (partial.kept.max[r] != kUnseen) add_sum(r, partial.kept, rules.head_dim, partial);
    }
  }

  int decode_tile() const override { return 1; }
  PageOrder page_order() const override { return PageOrder::lanes; }

  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const override {
    const Format& format = *plan.head(layer, kv_head).side(side).sealed;
    const int d = plan.geometry.dim(layer);
    if (format.number_type() != NumberType::none && plan.recipe.products == Products::real)
      return {fmt::format("cpu/{}/rows", kernels_.name), ""};
    if (!cpu::multiplies_codes(format, d)) {
      return {fmt::format("cpu/{}/decoded", kernels_.name),
              fmt::format("no kernel multiplies codes of {} with heads of {} channels: pages are decoded",
                          format.name(), d)};
    }
    static constexpr const char* kMeanings[] = {"numbers", "levels", "states", "vectors", "vectors"};
    const auto scheme = format.code_scheme(d);
    return {
        fmt::format("cpu/{}/{}{}", kernels_.name, kMeanings[static_cast<int>(scheme->meaning)], scheme->bits),
        ""};
  }

 private:
  struct WeightedPage {
    const PageSide* v;
    MatrixView<float> weights;
  };
  struct Buffers {
    explicit Buffers(const cpu::ByteKernels& kernels) : products(kernels), tiles(kernels), prompts(kernels) {}
    cpu::PageProducts products;
    cpu::TileProducts tiles;
    cpu::PromptProducts prompts;
    RunWeights run;
    std::vector<WeightedPage> read;  // pages of a mix
    TileScratch tile;                // buffers for tiles of many queries
  };

  // Algorithm 1 as printed rescales from page to page. Only the reference backend reproduces the resulting
  // error.
  static bool one_token(const QueryTile& tile, const AttentionRules& rules) {
    return tile.n_queries == 1 && rules.softmax != Softmax::sas_paper;
  }

  static void attend_bytes(const QueryTile& tile, std::span<const PageView> pages,
                           const AttentionRules& rules, Buffers& buffers, PartialAttention& partial) {
    if (!buffers.prompts.takes(rules))
      return kvant::attend_in_bytes(tile, pages, rules, buffers.tile, partial);
    buffers.prompts.begin(tile, rules);
    for (const PageView& page : pages) buffers.prompts.attend(page, partial);
  }

  // Serves tiles of many queries page by page. Pages whose codes can be multiplied are expanded; the other
  // pages are decoded.
  static SkipCount attend_tile(const QueryTile& tile, std::span<const PageView> pages,
                               const AttentionRules& rules, const SkipRule* skip, Buffers& buffers,
                               PartialAttention& partial) {
    const bool plain = rules.products == Products::real && rules.softmax == Softmax::exact && skip == nullptr;
    if (!plain) return kvant::attend_pages(tile, pages, rules, skip, buffers.tile, partial);
    buffers.tiles.begin(tile, rules);
    for (const PageView& page : pages) {
      if (buffers.tiles.takes(page)) {
        buffers.tiles.attend(page, partial);
      } else {
        kvant::attend_pages(tile, {&page, 1}, rules, nullptr, buffers.tile, partial);
      }
    }
    return {};
  }

  // Computes the scores of all pages, and then their weights relative to the largest score.
  static void weigh(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                    cpu::PageProducts& products, RunWeights& run) {
    const int n_rows = tile.rows(), n_tokens = tokens_of(pages);
    // Whole pages are reserved, because the tail grows.
    run.weights.reserve(n_rows * pages.size() * kPageTokens);
    run.weights.resize(static_cast<std::size_t>(n_rows) * n_tokens);
    run.max.resize(n_rows);
    run.sum.resize(n_rows);
    products.begin({tile.q.data(), n_rows, rules.head_dim}, tile.q_scale, rules.products);
    int first = 0;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const PageView& page = pages[i];
      const MatrixView<float> scores{run.weights.data() + first, n_rows, page.n_tokens, n_tokens};
      const PageSide* next = i + 1 < pages.size() ? &pages[i + 1].k : &pages[0].v;
      products.score(page.k, page.n_tokens, next, scores);
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

  // SAS drops tokens that score far below the largest score so far, page after page. Returns the sum of the
  // weights, which are relative to `max`.
  static float sas_pages(float* row, std::span<const PageView> pages, float max) {
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

  // Adds the sum of a run's weights to the sum of earlier runs.
  static void add_sum(int r, const RunWeights& run, int d, PartialAttention& partial) {
    if (run.max[r] > partial.max[r])
      partial.raise_max(r, run.max[r], std::exp(partial.max[r] - run.max[r]), d);
    partial.sum[r] += run.sum[r] * std::exp(run.max[r] - partial.max[r]);
  }

  static SkipCount mix(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                       const SkipRule* skip, const MatrixView<float>& weights, Buffers& buffers,
                       PartialAttention& partial) {
    SkipCount count;
    cpu::PageProducts& products = buffers.products;
    const MatrixView<float> out{partial.accumulator.data(), tile.rows(), rules.head_dim};
    products.begin({tile.q.data(), tile.rows(), rules.head_dim}, tile.q_scale, rules.products);
    // A page that is skipped as a whole is not prefetched either.
    std::vector<WeightedPage>& read = buffers.read;
    read.clear();
    read.reserve(pages.size());
    int first = 0;
    for (const PageView& page : pages) {
      const MatrixView<float> of_page{weights.data + first, weights.rows, page.n_tokens, weights.stride};
      if (skip == nullptr || skip_tokens(tile, page, rules, *skip, of_page, count))
        read.push_back({&page.v, of_page});
      first += page.n_tokens;
    }
    for (std::size_t i = 0; i < read.size(); ++i) {
      const auto& [v, of_page] = read[i];
      products.mix(*v, of_page.cols, i + 1 < read.size() ? read[i + 1].v : nullptr, of_page, out);
    }
    products.end(out);
    return count;
  }

  const cpu::ByteKernels& kernels_;
  std::vector<Buffers> threads_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cpu_backend() {
  const cpu::ByteKernels* best = cpu::best_kernels();
  if (best == nullptr) return nullptr;
  return make_layer_loop(std::make_unique<CpuAttention>(*best));
}

std::unique_ptr<AttentionBackend> make_cpu_backend(const std::string& kernels) {
  const cpu::ByteKernels* found = cpu::find_kernels(kernels.c_str());
  if (found == nullptr) return nullptr;
  return make_layer_loop(std::make_unique<CpuAttention>(*found));
}

}  // namespace kvant
