// Predicts the bytes of a cache at a given length before the cache exists. Users plan memory with these
// figures, and tables show the figures as bits per value. The functions need only the plan, so no model has
// to run.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/batch_pages.h"
#include "cache/cache.h"
#include "recipe/plan.h"

namespace kvant {

// Counts the tokens of one (layer, KV head) that the cache keeps apart because they receive much attention.
struct Selection {
  // The number includes the sink.
  int protected_tokens = 0;
  // Counts the sealed pages in which at least one token is masked.
  int masked_pages = 0;
};
// Returns the largest selection that the plan allows for a sequence of n_tokens.
Selection largest_selection(const Plan& plan, int layer, int n_tokens);

// Returns the bytes of one (layer, KV head) of a sequence of n_tokens >= 0, whose last 128 tokens or more
// were decoded in single steps. The result covers pages, pages encoded ahead, the tail, protected pages,
// lists, scores, observing queries and the sums of a correction, but no checkpoint. The result is exact,
// except that pages that eviction would free still count.
CacheBytes predicted_head_bytes(const Plan& plan, int layer, int kv_head, int n_tokens,
                                const Selection& selection);
// predicted_bytes(), predicted_cache_bytes() and cache_bytes_by_layer() return the bytes of all heads with
// the largest selection: by part, in total, and by layer.
CacheBytes predicted_bytes(const Plan& plan, int n_tokens);
std::int64_t predicted_cache_bytes(const Plan& plan, int n_tokens);
std::vector<std::int64_t> cache_bytes_by_layer(const Plan& plan, int n_tokens);

// Holds the bits per value of K and V together.
struct CacheBits {
  // Counts pages, their parameters, masks and protected pages except the sink's. The value is NaN if no page
  // is sealed.
  double sealed = 0;
  // Counts the tail, the window and the sink in addition to `sealed`.
  double all = 0;
};
// Returns the bits that tables show, which are the mean of bytes(n) * 8 / elements(n) over the lengths n in
// (context - 128, context]. The mean covers every position of a page, because the tail grows from nothing to
// a page and is then sealed. `sealed` averages only over lengths with sealed pages. `context` must be
// positive.
CacheBits mean_bits(const Plan& plan, int context);
// Returns the mean bits of a sequence that was measured at `context`. The number of tokens that the text
// selected is taken from `measured` and used for all lengths.
CacheBits mean_bits(const Plan& plan, int context, const CacheBytes& measured);
// A prefill step has kUsualStep tokens unless an option says otherwise.
inline constexpr int kUsualStep = 512;
// Returns the largest number of bytes that a sequence takes while it grows to n_tokens, including recurrent
// states. No step may add more than step_tokens. The memory that holds the plan's pages must have room for
// these bytes.
std::int64_t largest_cache_bytes(const PlacedPlan& placed, int n_tokens, int step_tokens = kUsualStep);
// Returns the largest number of bytes of a batch whose sequences grow to n_tokens each. Temporary memory of a
// step counts once, not once per sequence.
std::int64_t largest_batch_bytes(const PlacedPlan& placed, int n_tokens, const Batch& batch);
// Returns the bytes of a sequence at `context` according to mean_bits(), for comparison with a memory budget.
std::int64_t mean_cache_bytes(const Plan& plan, int context);

// Returns the bytes that n_tokens would take as plain BF16 in the same layers. Compression ratios divide by
// this size.
std::int64_t bf16_bytes(const Geometry& geometry, int n_tokens);

// Holds the size of the model constants (recipe/constant_size.h), which all sequences share. `bits` spreads
// the bytes over the values of one sequence of n_tokens > 0.
struct ConstantSize {
  std::int64_t bytes = 0;
  double bits = 0;
};
ConstantSize constant_size(const Plan& plan, int n_tokens);

}  // namespace kvant
