#include "serve/prefix_cache.h"

#include <algorithm>

#include "base/page_size.h"

namespace kvant {
namespace {

int whole_pages(std::ptrdiff_t n_tokens) {
  return static_cast<int>(n_tokens / kPageTokens * kPageTokens);
}

std::ptrdiff_t n_alike(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

bool cuts_exactly(const Plan& plan) {
  const bool corrected = std::ranges::any_of(plan.heads, [](const HeadPlan& head) { return head.corrected; });
  return !corrected && plan.recipe.prefill == kPageTokens &&
         std::ranges::all_of(plan.layers, [](const LayerPlan& layer) {
           return layer.window == 0 && layer.sliding_window == 0 && layer.evict == 0 && !layer.needs_scores();
         });
}

PrefixCache::PrefixCache(Cache& cache, std::int64_t byte_limit)
    : cache_(cache), byte_limit_(byte_limit), cuts_(cuts_exactly(cache.plan())) {}

PrefixCache::~PrefixCache() {
  for (const Entry& entry : entries_) cache_.free(entry.sequence);
}

Result<PrefixCache::Match> PrefixCache::find(std::span<const std::int32_t> prompt) {
  if (prompt.empty()) return Match{};
  const std::span<const std::int32_t> wanted = prompt.first(prompt.size() - 1);
  Match match;
  Entry* best = nullptr;
  for (Entry& entry : entries_) {
    const int common = whole_pages(n_alike(entry.tokens, wanted));
    const int usable = cuts_ || common == std::ssize(entry.tokens) ? common : 0;
    match.n_common = std::max(match.n_common, common);
    if (usable <= match.n_tokens) continue;
    match.n_tokens = usable;
    best = &entry;
  }
  if (best == nullptr) return match;
  best->last_use = ++uses_;
  const Result<SequenceId> fork = cache_.fork(best->sequence);
  if (!fork.ok()) return fork.error();
  match.sequence = *fork;
  if (match.n_tokens == std::ssize(best->tokens)) return match;
  const Status cut = cache_.truncate(match.sequence, match.n_tokens);
  if (cut.ok()) return match;
  cache_.free(match.sequence);
  return cut.error();
}

Status PrefixCache::keep(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared) {
  KVANT_CHECK(
      cache_.length(sequence) == std::ssize(tokens) && whole_pages(std::ssize(tokens)) == std::ssize(tokens),
      "only whole pages are kept");
  for (Entry& entry : entries_) {
    if (!std::ranges::equal(entry.tokens, tokens)) continue;
    entry.last_use = ++uses_;
    return {};
  }
  const CacheBytes size = cache_.bytes(sequence);
  const double own = 1 - static_cast<double>(n_shared) / static_cast<double>(tokens.size());
  std::int64_t bytes =
      static_cast<std::int64_t>(own * static_cast<double>(size.all() - size.tail)) + size.tail;
  if (bytes > byte_limit_) return {};
  const Result<SequenceId> fork = cache_.fork(sequence);
  if (!fork.ok()) return fork.error();
  if (cuts_) bytes += drop_beginnings(tokens);
  while (bytes_ + bytes > byte_limit_ && drop_oldest()) {
  }
  entries_.push_back({*fork, {tokens.begin(), tokens.end()}, bytes, ++uses_});
  bytes_ += bytes;
  return {};
}

// Those of which `tokens` is a longer form that can be cut to them. Returns their bytes, which it shares.
std::int64_t PrefixCache::drop_beginnings(std::span<const std::int32_t> tokens) {
  std::int64_t shared = 0;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (n_alike(entry.tokens, tokens) != std::ssize(entry.tokens)) return false;
    cache_.free(entry.sequence);
    shared += entry.bytes;
    return true;
  });
  bytes_ -= shared;
  return shared;
}

bool PrefixCache::drop_oldest() {
  if (entries_.empty()) return false;
  const auto oldest = std::ranges::min_element(entries_, {}, &Entry::last_use);
  cache_.free(oldest->sequence);
  bytes_ -= oldest->bytes;
  entries_.erase(oldest);
  ++dropped_;
  return true;
}

}  // namespace kvant
