#include "eval/cache_size.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/linear_correction.h"
#include "cache/device_layout.h"
#include "cache/head_state.h"
#include "cache/page_counts.h"
#include "cache/token_scores.h"
#include "recipe/constant_size.h"

namespace kvant {
namespace {

// A sequence keeps the recurrent states from before and after the current step, and a copy for its newest
// checkpoint.
constexpr int kRecurrentStates = 3;

// Returns whether the head has encoded a page before the page is due. Early encoding begins at the head's
// turn in the open page. The first page of a sequence is an exception: the head encodes it while the second
// page is open, whatever the window is.
bool encoded_ahead(const Plan& plan, int layer, int kv_head, int n_tokens, int n_sealed) {
  const int turn = seal_ahead_turn(plan, layer, kv_head);
  if (turn == 0 || n_tokens < kPageTokens + turn) return false;
  return n_sealed == 0 || n_tokens % kPageTokens >= turn;
}

std::int64_t tail_bytes(const Plan& plan, int layer, int n_tokens) {
  return 2 * static_cast<std::int64_t>(
                 plan.tail->short_page_bytes(plan.geometry.dim(layer), tail_room(n_tokens)));
}

// observer_bytes() returns the bytes of the open page's observing queries, and score_bytes() returns the
// bytes of the scores of earlier tokens.
std::int64_t observer_bytes(const Geometry& g, int layer, int n_tokens) {
  return static_cast<std::int64_t>(open_observers(n_tokens)) * g.group(layer) *
         ObserverRows::bytes_of(g.dim(layer));
}
std::int64_t score_bytes(int n_tokens) {
  return static_cast<std::int64_t>(n_tokens / kPageTokens * kPageTokens) * TokenScores::kTokenBytes;
}

CacheBytes layer_bytes(const Plan& plan, int layer, int n_tokens) {
  const Selection selection = largest_selection(plan, layer, n_tokens);
  CacheBytes total;
  for (int head = 0; head < plan.geometry.kv_heads(layer); ++head)
    total += predicted_head_bytes(plan, layer, head, n_tokens, selection);
  return total;
}

// Returns the bytes that belong neither to the tail nor to pages encoded ahead.
std::int64_t settled(const CacheBytes& bytes) {
  return bytes.sealed + bytes.protected_tokens + bytes.sink;
}

// Returns the additional tail bytes that one step's pages need in layers whose caches other layers share. A
// shared layer keeps these pages until the step ends.
std::int64_t lasting_tail_bytes(const Plan& plan, int n_tokens, const Batch& batch) {
  const Geometry& g = plan.geometry;
  std::int64_t bytes = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (!g.is_shared(layer)) continue;
    const auto page = static_cast<std::int64_t>(plan.tail->page_bytes(g.dim(layer)));
    bytes += 2 * g.kv_heads(layer) * page * most_batch_pages(n_tokens, /*held=*/0, batch);
  }
  return bytes;
}

}  // namespace

Selection largest_selection(const Plan& plan, int layer, int n_tokens) {
  const LayerPlan& rules = plan.layers[layer];
  const int n_sealed = sealed_pages(n_tokens, rules.window);
  Selection selection{.protected_tokens = max_protected_tokens(rules, n_sealed)};
  if (rules.needs_scores() || rules.evict > 0) {
    selection.masked_pages = n_sealed;
  } else if (selection.protected_tokens > 0) {
    // Only the page that contains the sink has masked tokens.
    selection.masked_pages = 1;
  }
  return selection;
}

CacheBytes predicted_head_bytes(const Plan& plan, int layer, int kv_head, int n_tokens,
                                const Selection& selection) {
  const Geometry& g = plan.geometry;
  const LayerPlan& rules = plan.layers[layer];
  const HeadPlan& head = plan.head(layer, kv_head);
  const PageCounts pages = page_counts(n_tokens, rules.window, rules.sliding_window);
  const int n_held = pages.sealed - pages.freed;
  const auto page_bytes = static_cast<std::int64_t>(head.k.sealed->page_bytes(g.dim(layer)) +
                                                    head.v.sealed->page_bytes(g.dim(layer)));
  CacheBytes bytes;
  if (rules.evict < 1) bytes.sealed = n_held * page_bytes;
  if (selection.protected_tokens > 0) {
    const int rows = protected_page_rows(plan, layer);
    const int n_pages = (selection.protected_tokens + rows - 1) / rows;
    const auto protected_bytes =
        2 * n_pages * static_cast<std::int64_t>(plan.tail->short_page_bytes(g.dim(layer), rows));
    bytes.sink =
        protected_bytes * std::min(rules.sink, selection.protected_tokens) / selection.protected_tokens;
    bytes.protected_tokens = protected_bytes - bytes.sink;
  }
  bytes.protected_tokens += ProtectedTokens::list_bytes(selection.protected_tokens, selection.masked_pages);
  if (head.corrected && pages.sealed > 0) bytes.protected_tokens += correction_bytes(g.dim(layer));
  bytes.tail = tail_bytes(plan, layer, pages.tail_tokens);
  if (encoded_ahead(plan, layer, kv_head, n_tokens, pages.sealed)) bytes.tail += page_bytes;
  if (rules.needs_scores()) {
    bytes.protected_tokens += score_bytes(n_tokens);
    bytes.tail += observer_bytes(g, layer, n_tokens);
  }
  bytes.sealed_elements = std::int64_t{2} * n_held * kPageTokens * g.dim(layer);
  bytes.elements = std::int64_t{2} * (n_tokens - pages.freed * kPageTokens) * g.dim(layer);
  return bytes;
}

CacheBytes predicted_bytes(const Plan& plan, int n_tokens) {
  CacheBytes total;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) total += layer_bytes(plan, layer, n_tokens);
  total.recurrent = n_tokens > 0 ? plan.geometry.recurrent_bytes() : 0;
  return total;
}

std::int64_t predicted_cache_bytes(const Plan& plan, int n_tokens) {
  return predicted_bytes(plan, n_tokens).all();
}

std::vector<std::int64_t> cache_bytes_by_layer(const Plan& plan, int n_tokens) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(plan.geometry.n_layers);
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer)
    bytes.push_back(layer_bytes(plan, layer, n_tokens).all());
  return bytes;
}

CacheBits mean_bits(const Plan& plan, int context) {
  CacheBits sum;
  const int first = std::max(0, context - kPageTokens) + 1;
  // Counts the lengths at which at least one page is sealed, because shorter sequences have no sealed bits.
  int n_sealed = 0;
  for (int n = first; n <= context; ++n) {
    const CacheBytes bytes = predicted_bytes(plan, n);
    sum.all += bytes.bits_all();
    sum.sealed += bytes.bits_sealed();
    if (bytes.sealed_elements > 0) ++n_sealed;
  }
  return {n_sealed > 0 ? sum.sealed / n_sealed : std::numeric_limits<double>::quiet_NaN(),
          sum.all / (context - first + 1)};
}

// If as many pages are sealed as predicted, any other difference comes from the tokens that the text
// selected. Otherwise, the result is the prediction. For example, a prompt in one block has not sealed
// anything yet.
CacheBits mean_bits(const Plan& plan, int context, const CacheBytes& measured) {
  CacheBits bits = mean_bits(plan, context);
  const CacheBytes predicted = predicted_bytes(plan, context);
  if (measured.sealed_elements != predicted.sealed_elements || predicted.sealed_elements == 0) return bits;
  const auto more = 8.0 * static_cast<double>(settled(measured) - settled(predicted));
  bits.all += more / static_cast<double>(predicted.elements);
  bits.sealed += measured.bits_sealed() - predicted.bits_sealed();
  return bits;
}

std::int64_t largest_cache_bytes(const PlacedPlan& placed, int n_tokens, int step_tokens) {
  return largest_batch_bytes(placed, n_tokens, {.n_seqs = 1, .step_tokens = step_tokens});
}

// The loop covers only the last page of the growth, because shorter sequences need less memory.
std::int64_t largest_batch_bytes(const PlacedPlan& placed, int n_tokens, const Batch& batch) {
  const Plan& plan = *placed;
  const std::int64_t states = batch.n_seqs * kRecurrentStates * plan.geometry.recurrent_bytes();
  if (placed.on_device()) return states + largest_device_bytes(placed, n_tokens, batch);
  std::int64_t largest = 0;
  for (int n = std::max(0, n_tokens - kPageTokens) + 1; n <= n_tokens; ++n)
    largest = std::max(largest, predicted_cache_bytes(plan, n));
  return states + batch.n_seqs * largest + lasting_tail_bytes(plan, n_tokens, batch);
}

std::int64_t mean_cache_bytes(const Plan& plan, int context) {
  const auto elements = static_cast<double>(predicted_bytes(plan, context).elements);
  return std::llround(mean_bits(plan, context).all * elements / 8);
}

std::int64_t bf16_bytes(const Geometry& geometry, int n_tokens) {
  std::int64_t elements = 0;  // counts one side
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const std::int64_t tokens =
        geometry.slides(layer) ? std::min(n_tokens, geometry.sliding_window[layer]) : n_tokens;
    elements += tokens * geometry.kv_heads(layer) * geometry.dim(layer);
  }
  return elements * 2 * 2;  // K and V have 2 bytes per element each
}

ConstantSize constant_size(const Plan& plan, int n_tokens) {
  const std::int64_t bytes = constant_bytes(plan);
  return {bytes,
          16.0 * static_cast<double>(bytes) / static_cast<double>(bf16_bytes(plan.geometry, n_tokens))};
}

}  // namespace kvant
