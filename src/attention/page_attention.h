// PageAttention: how a backend attends one tile of queries to a run of pages. The loop around it
// (layer_loop.cc) is the same for all.
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

  // Before any of the others: threads 0 .. n_threads - 1 will call them, each with buffers of its own.
  virtual void prepare(int n_threads) = 0;

  // Adds `pages` to `partial`. With a skip rule, weigh_pages has been called with the same pages and partial,
  // and partial.max is its total's max; returns what was skipped. In bytes nothing is.
  virtual SkipCount attend_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                                 const AttentionRules& rules, const SkipRule* skip,
                                 PartialAttention& partial) = 0;

  // Adds only the maxima and sums of `pages`: the first of two passes. V is not read.
  virtual void weigh_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                           const AttentionRules& rules, PartialAttention& partial) = 0;

  // Max queries of a tile of a decode step: 1 where one query has kernels of its own, so that several tokens
  // of a step give what they would give one by one.
  virtual int decode_tile() const { return kPageTokens; }

  // See AttentionBackend.
  virtual PageOrder page_order() const { return PageOrder::canonical; }
  virtual KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const = 0;
};

// The loop of every backend that runs on the CPU: append, attend and seal of one layer, for any mixture of
// formats, with the features of all recipes.
std::unique_ptr<AttentionBackend> make_layer_loop(std::unique_ptr<PageAttention> pages);

}  // namespace kvant
