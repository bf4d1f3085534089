// Predicts the bytes of a cache at a given length before any of it exists, and the bits per value that tables
// give (design section 4).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/batch_pages.h"
#include "cache/cache.h"
#include "recipe/plan.h"

namespace kvant {

// Counts the tokens of one (layer, KV head) that were selected by the attention they receive.
struct Selection {
  int protected_tokens = 0;  // including the sink
  int masked_pages = 0;      // sealed pages with any token left out
};
// Returns the largest selection that the plan allows after n_tokens.
Selection largest_selection(const Plan& plan, int layer, int n_tokens);

// Returns the bytes of one (layer, KV head) of a sequence of n_tokens >= 0, of which at least the last 128
// were decoded one by one. It covers pages, pages encoded ahead, the tail, protected pages, lists, scores,
// observers and the sums of a correction, but no checkpoint. The result is exact, except that it still counts
// pages which eviction of a share of the tokens would free.
CacheBytes predicted_head_bytes(const Plan& plan, int layer, int kv_head, int n_tokens,
                                const Selection& selection);
// Return the bytes of all heads with the largest selection: in total, and by layer.
CacheBytes predicted_bytes(const Plan& plan, int n_tokens);
std::int64_t predicted_cache_bytes(const Plan& plan, int n_tokens);
std::vector<std::int64_t> cache_bytes_by_layer(const Plan& plan, int n_tokens);

// Holds bits per value of K and V.
struct CacheBits {
  double sealed = 0;  // pages, parameters, masks and protected pages without the sink; NaN: no page is sealed
  double all = 0;     // the same plus the tail, the window and the sink
};
// Returns the bits that tables show: the mean of bytes(n) * 8 / elements(n) over the lengths n in (context -
// 128, context]. There is one length for each position of a page, since the tail grows from nothing to a page
// and is then sealed. `sealed` averages over lengths with sealed pages. 0 < context.
CacheBits mean_bits(const Plan& plan, int context);
// Does the same for a sequence with these bytes at `context`; what its text selected counts as measured
// there.
CacheBits mean_bits(const Plan& plan, int context, const CacheBytes& measured);
// The default number of tokens in a prefill step.
inline constexpr int kUsualStep = 512;
// Returns the maximum number of bytes that a sequence takes on its way to n_tokens, recurrent states
// included, if no step adds more than step_tokens. These must fit into the memory that holds the plan's
// pages.
std::int64_t largest_cache_bytes(const PlacedPlan& placed, int n_tokens, int step_tokens = kUsualStep);
// Does the same for a batch whose sequences grow to n_tokens each. Memory that a step needs temporarily
// counts once, not per sequence.
std::int64_t largest_batch_bytes(const PlacedPlan& placed, int n_tokens, const Batch& batch);
// Returns the bytes at `context` at the mean bits, for comparison with a budget in bits or bytes.
std::int64_t mean_cache_bytes(const Plan& plan, int context);

// Returns the bytes of n_tokens as plain BF16 in the same layers, for comparison with a recipe.
std::int64_t bf16_bytes(const Geometry& geometry, int n_tokens);

// Holds the size of the model constants (recipe/constant_size.h), which all sequences share: in total, and as
// bits per value of one sequence of n_tokens > 0.
struct ConstantSize {
  std::int64_t bytes = 0;
  double bits = 0;
};
ConstantSize constant_size(const Plan& plan, int n_tokens);

}  // namespace kvant
