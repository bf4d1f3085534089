#include "cache/device_protection.h"

#include <algorithm>

#include "cache/device_layout.h"
#include "cache/page_counts.h"
#include "cache/protected_rows.h"

namespace kvant {

bool protects_by_score(const Plan& plan, int layer) {
  return plan.layers[layer].protect > 0 && !is_unquantized(plan);
}

bool protects_by_score(const Plan& plan) {
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    if (protects_by_score(plan, layer)) return true;
  }
  return false;
}

std::shared_ptr<ProtectedTokens> ProtectedTokens::none(const Geometry& geometry) {
  auto tokens = std::make_shared<ProtectedTokens>();
  tokens->heads.resize(static_cast<std::size_t>(geometry.n_all_kv_heads()));
  return tokens;
}

TokenMask ProtectedTokens::mask(const Head& head, int page) {
  TokenMask mask;
  const int first = page * kPageTokens;
  for (auto t = std::lower_bound(head.tokens.begin(), head.tokens.end(), first);
       t != head.tokens.end() && *t < first + kPageTokens; ++t)
    mask.set(*t - first);
  return mask;
}

void ProtectedTokens::seal(Head& head, const LayerPlan& layer, int first, int end) {
  for (int page = first; page < end; ++page) {
    const TokenMask mask = tokens_to_protect(layer, &head.scores, page, static_cast<int>(head.tokens.size()));
    for (int t = 0; t < kPageTokens; ++t) {
      if (mask.test(t)) head.tokens.push_back(page * kPageTokens + t);
    }
  }
}

void ProtectedTokens::truncate(int n_tokens, int n_sealed) {
  for (Head& head : heads) {
    head.scores.truncate(n_tokens);
    head.tokens.erase(std::lower_bound(head.tokens.begin(), head.tokens.end(), n_sealed * kPageTokens),
                      head.tokens.end());
  }
}

int ProtectedTokens::most_rows() const {
  std::size_t most = 0;
  for (const Head& head : heads) most = std::max(most, head.tokens.size());
  return static_cast<int>(most);
}

int ProtectedTokens::fewest_rows(const Plan& plan) const {
  std::size_t fewest = most_rows();
  const Geometry& g = plan.geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; protects_by_score(plan, layer) && h < g.n_kv_heads; ++h)
      fewest = std::min(fewest, heads[g.head_index(layer, h)].tokens.size());
  }
  return static_cast<int>(fewest);
}

int protected_pages(const Plan& plan, int n_sealed) {
  int rows = 0;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    if (protects_by_score(plan, layer))
      rows = std::max(rows, max_protected_tokens(plan.layers[layer], n_sealed));
  }
  return pages_for(rows);
}

DeviceProtection DeviceProtection::share() const {
  DeviceProtection other;
  other.tokens = tokens;
  for (const EntryHold& page : pages) other.pages.push_back(page.share());
  other.observers = observers.share();
  other.first_observer = first_observer;
  return other;
}

// Entries keep no rows after the last one, and the observers of an ended page are gone.
void DeviceProtection::truncate(int n_tokens, int n_sealed) {
  if (tokens == nullptr) return;
  auto left = std::make_shared<ProtectedTokens>(*tokens);
  left->truncate(n_tokens, n_sealed);
  pages.resize(std::min<std::size_t>(pages.size(), pages_for(left->most_rows())));
  tokens = std::move(left);
  const bool is_open = first_observer / kPageTokens == n_tokens / kPageTokens;
  if (first_observer >= 0 && first_observer < n_tokens && is_open) return;
  observers.reset();
  first_observer = -1;
}

int first_observer_of(int page_end, int first, int first_observer) {
  return std::max(page_end - kObservers, first_observer >= 0 ? first_observer : first);
}

}  // namespace kvant
