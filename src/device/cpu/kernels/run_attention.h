// RunAttention attends to a run of pages of one KV head, in any format. It computes the scores of all pages,
// then the softmax, then the products with V. The engine's CPU backend and the CPU library share it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/kernels/page_products.h"
#include "device/cpu/kernels/skip_count.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant::cpu {

// UnreadPages says for which sealed pages V stays unread. A query gives every token of such a page at most
// `threshold` times the weight of its heaviest token in the run. The structure counts sealed pages and unread
// pages.
struct UnreadPages {
  float threshold = 0;
  std::int64_t seen = 0, unread = 0;
};

// Each thread has a RunAttention of its own, because it contains buffers.
class RunAttention {
 public:
  explicit RunAttention(const ByteKernels& kernels) : products_(kernels) {}

  // Adds `pages` to `partial` and returns what was skipped. With a skip rule, the caller has passed `pages`
  // to weigh() before, and partial.max is the maximum over all pages.
  SkipCount attend(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                   const SkipRule* skip, PartialAttention& partial);

  // Adds `pages` to `partial`, but leaves V unread for pages whose tokens count too little.
  void attend_but(UnreadPages& unread, const QueryTile& tile, std::span<const PageView> pages,
                  const AttentionRules& rules, PartialAttention& partial);

  // Adds only the maxima and sums of `pages`, and leaves their weights in partial.kept. V is not read.
  void weigh(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
             PartialAttention& partial);

 private:
  struct WeightedPage {
    const PageSide* v;
    MatrixView<float> weights;
  };

  void score(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
             RunWeights& run);
  template <class Reads>
  void mix(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
           RunWeights& run, PartialAttention& partial, const Reads& reads);

  PageProducts products_;
  RunWeights run_;
  std::vector<WeightedPage> read_;  // The pages of a mix whose V is read.
};

}  // namespace kvant::cpu
