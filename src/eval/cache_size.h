// How many bytes a cache takes at a length, before any of it exists, and the bits for each element that
// tables give (design section 4).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/batch_pages.h"
#include "cache/cache.h"
#include "recipe/plan.h"

namespace kvant {

// Which tokens the attention that they draw has chosen, in one (layer, KV head).
struct Selection {
  int protected_tokens = 0;  // protected, the sink included
  int masked_pages = 0;      // sealed pages that have any left out
};
// As many as the plan allows, after n_tokens.
Selection largest_selection(const Plan& plan, int layer, int n_tokens);

// Bytes of one (layer, KV head) of a sequence of n_tokens >= 0 whose last 128 at least were decoded one
// by one: pages, what is encoded ahead, the tail, protected pages, lists, scores, observers, sums of a
// correction (without a checkpoint). Exact, but for pages that a share of evictions would free, which count.
CacheBytes predicted_head_bytes(const Plan& plan, int layer, int kv_head, int n_tokens,
                                const Selection& selection);
// Of all heads, with the largest selection: in all, and by layer.
CacheBytes predicted_bytes(const Plan& plan, int n_tokens);
std::int64_t predicted_cache_bytes(const Plan& plan, int n_tokens);
std::vector<std::int64_t> cache_bytes_by_layer(const Plan& plan, int n_tokens);

// Bits for each element of K and V.
struct CacheBits {
  double sealed = 0;  // pages, parameters, masks and protected pages without the sink; NaN: nothing is sealed
  double all = 0;     // that, the tail, the window and the sink
};
// The bits of tables: the mean of bytes(n) * 8 / elements(n) over the lengths n in (context - 128, context],
// one for each position of a page, since the tail grows from nothing to a page and is sealed. `sealed`: over
// the lengths at which anything is. 0 < context.
CacheBits mean_bits(const Plan& plan, int context);
// The same of a sequence with these bytes at `context`: what its text selected counts as it was there.
CacheBits mean_bits(const Plan& plan, int context, const CacheBytes& measured);
// Tokens of a step of a prompt, unless something else is said.
inline constexpr int kUsualStep = 512;
// The maximum number of bytes that a sequence takes on its way to n_tokens, recurrent states included, if no
// step adds more than step_tokens: what must fit into the memory where the plan's pages lie.
std::int64_t largest_cache_bytes(const Plan& plan, int n_tokens, int step_tokens = kUsualStep);
// The same of a batch whose sequences grow to n_tokens each. What a step opens counts once, not for each.
std::int64_t largest_batch_bytes(const Plan& plan, int n_tokens, const Batch& batch);
// Bytes at `context` at the mean bits: what a budget in bits or bytes is compared with.
std::int64_t mean_cache_bytes(const Plan& plan, int context);

// Bytes that n_tokens take as plain BF16 in the same layers: what a recipe is compared with.
std::int64_t bf16_bytes(const Geometry& geometry, int n_tokens);

// Model constants (recipe/constant_size.h), which all sequences share: in all, and as bits for each element
// of one sequence of n_tokens > 0.
struct ConstantSize {
  std::int64_t bytes = 0;
  double bits = 0;
};
ConstantSize constant_size(const Plan& plan, int n_tokens);

}  // namespace kvant
