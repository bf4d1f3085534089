// PageAttention attends with a tile of queries to pages of one KV head, in any format. The engine's loop and
// the CPU library share it.
#pragma once

#include <optional>
#include <span>

#include "device/cpu/kernels/prompt_products.h"
#include "device/cpu/kernels/run_attention.h"
#include "device/cpu/kernels/tile_attention.h"
#include "device/cpu/kernels/tile_products.h"

namespace kvant::cpu {

// Each thread has a PageAttention of its own, because it contains buffers.
class PageAttention {
 public:
  // Null kernels stand for the reference, which decodes pages and multiplies in F32.
  explicit PageAttention(const ByteKernels* kernels);

  // Adds `pages` to `partial` and returns what was skipped. With a skip rule, the caller has passed `pages`
  // to weigh() before, and partial.max is the maximum over all pages. Prompts in bytes skip nothing.
  SkipCount attend(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                   const SkipRule* skip, PartialAttention& partial);

  // Adds only the maxima and sums of `pages`, in the first of two passes. V is not read.
  void weigh(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
             PartialAttention& partial);

  // Adds `pages` to `partial` for a tile of one query, but leaves V unread for pages whose tokens count too
  // little. Requires kernels.
  void attend_but(UnreadPages& unread, const QueryTile& tile, std::span<const PageView> pages,
                  const AttentionRules& rules, PartialAttention& partial) {
    kernels_->run.attend_but(unread, tile, pages, rules, partial);
  }

  // begin() sets the queries of a tile that skips nothing, and add() adds one page to `partial` after
  // another. Pages whose codes can be multiplied are expanded to bytes, and the other pages are decoded. Tile
  // and rules outlive the calls of add().
  void begin(const QueryTile& tile, const AttentionRules& rules);
  void add(const PageView& page, PartialAttention& partial);

 private:
  struct Kernels {
    explicit Kernels(const ByteKernels& kernels) : run(kernels), tiles(kernels), prompts(kernels) {}
    RunAttention run;
    TileProducts tiles;
    PromptProducts prompts;
  };

  bool takes_run(const QueryTile& tile, const AttentionRules& rules) const;
  void attend_bytes(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                    PartialAttention& partial);

  std::optional<Kernels> kernels_;
  TileScratch scratch_;
  // begin() sets the members below.
  const QueryTile* tile_ = nullptr;
  const AttentionRules* rules_ = nullptr;
  bool expands_ = false;
};

}  // namespace kvant::cpu
