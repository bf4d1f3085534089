// PageAttention attends one tile of queries to a run of pages. Each CPU backend implements PageAttention, and
// the loop around it (layer_loop.cc) serves all of them.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "attention/attention.h"
#include "cache/head_state.h"
#include "device/cpu/kernels/skip_count.h"
#include "device/cpu/kernels/tile.h"

namespace kvant {

class PageAttention {
 public:
  virtual ~PageAttention() = default;

  // Is called before any other function. Threads 0 .. n_threads - 1 then call the others, each with buffers
  // of its own.
  virtual void prepare(int n_threads) = 0;

  // Adds `pages` to `partial` and returns what was skipped. With a skip rule, the caller has passed `pages`
  // to weigh_pages() before, and partial.max is the maximum over all pages. Prompts in bytes skip nothing.
  virtual SkipCount attend_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                                 const AttentionRules& rules, const SkipRule* skip,
                                 PartialAttention& partial) = 0;

  // Adds only the maxima and sums of `pages`, in the first of two passes. V is not read.
  virtual void weigh_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                           const AttentionRules& rules, PartialAttention& partial) = 0;

  // Returns the maximum number of queries in a tile of a decode step. A backend with separate kernels for one
  // query returns 1, so several tokens of a step give the outputs that they give one by one.
  virtual int decode_tile() const { return kPageTokens; }

  // Both functions implement AttentionBackend.
  virtual PageOrder page_order() const { return PageOrder::canonical; }
  virtual KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const = 0;
};

// Makes the loop of every backend that runs on the CPU. The loop appends, attends and seals for one layer,
// with any mixture of formats and with the features of all recipes.
std::unique_ptr<AttentionBackend> make_layer_loop(std::unique_ptr<PageAttention> pages);

}  // namespace kvant
