#include "cache/protected_tokens.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "cache/device_layout.h"
#include "cache/page_counts.h"

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

int protection_cap(const LayerPlan& layer, int n_sealed) {
  return static_cast<int>(std::ceil(layer.protect * n_sealed * kPageTokens));
}

int max_protected_tokens(const LayerPlan& layer, int n_sealed) {
  return n_sealed == 0 ? 0 : layer.sink + protection_cap(layer, n_sealed);
}

int protected_page_rows(const Plan& plan, int layer) {
  constexpr int kRows = 32;  // A half-empty page of so few rows costs little memory.
  return plan.layers[layer].protect > 0 ? kRows : plan.layers[layer].sink;
}

int most_protected_entries(const Plan& plan, const std::vector<int>& rows_of_layer, int n_sealed) {
  int most = 0;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const int rows = rows_of_layer[layer];
    if (rows > 0)
      most = std::max(most, (max_protected_tokens(plan.layers[layer], n_sealed) + rows - 1) / rows);
  }
  return most;
}

// --- one head ---

std::vector<PageMask> masks_of(const std::vector<int>& tokens) {
  std::vector<PageMask> masks;
  for (const int token : tokens) {
    if (masks.empty() || masks.back().page != token / kPageTokens)
      masks.push_back({.page = token / kPageTokens});
    masks.back().mask.set(token % kPageTokens);
  }
  return masks;
}

TokenMask ProtectedTokens::Head::mask(int page) const {
  const auto found = std::ranges::lower_bound(masks, page, {}, &PageMask::page);
  return found != masks.end() && found->page == page ? found->mask : TokenMask{};
}

int ProtectedTokens::Head::n_before(int token) const {
  return static_cast<int>(std::ranges::lower_bound(tokens, token) - tokens.begin());
}

TokenMask ProtectedTokens::Head::to_protect(const LayerPlan& layer, int page) const {
  const int room = layer.sink + protection_cap(layer, page + 1) - static_cast<int>(tokens.size()) -
                   (page == 0 ? layer.sink : 0);
  TokenMask mask;
  if (layer.protect > 0) mask = scores.select(page, layer.protect, room, layer.sink);
  for (int t = 0; page == 0 && t < layer.sink; ++t) mask.set(t);
  return mask;
}

void ProtectedTokens::Head::reserve(const LayerPlan& layer, const PageLedger& ledger) {
  if (layer.needs_scores()) scores.reserve(pages_for(ledger.end()) * kPageTokens);
  const int n_protected = max_protected_tokens(layer, ledger.end_sealed());
  tokens.reserve(n_protected);
  if (layer.evict > 0 || n_protected > 0)
    masks.reserve(masks.size() + ledger.end_sealed() - ledger.n_sealed());
}

TokenMask ProtectedTokens::Head::seal(const LayerPlan& layer, int page) {
  const TokenMask chosen = to_protect(layer, page);
  for (int t = 0; t < kPageTokens; ++t) {
    if (chosen.test(t)) tokens.push_back(page * kPageTokens + t);
  }
  if (!chosen.empty() || layer.evict > 0) masks.push_back({page, chosen});
  if (layer.evict > 0) evict(layer);
  return chosen;
}

// Masks tokens of sealed pages, including the page that is being sealed, until the recipe's share is evicted.
// The least attended token goes first, and among equal tokens the oldest.
void ProtectedTokens::Head::evict(const LayerPlan& layer) {
  std::vector<std::pair<float, int>> left;  // score, token
  for (const PageMask& page : masks) {
    for (int t = 0; t < kPageTokens; ++t) {
      const int token = page.page * kPageTokens + t;
      if (!page.mask.test(t)) left.emplace_back(scores.score(token), token);
    }
  }
  const int n_sealed = static_cast<int>(masks.size()) * kPageTokens;
  const int n_evicted = n_sealed - static_cast<int>(left.size() + tokens.size());
  const int due = static_cast<int>(layer.evict * n_sealed) - n_evicted;
  const auto n = std::clamp<std::ptrdiff_t>(due, 0, std::ssize(left));
  std::nth_element(left.begin(), left.begin() + n, left.end());
  for (const auto& [score, token] : std::span(left).first(n))
    masks[token / kPageTokens].mask.set(token % kPageTokens);
}

void ProtectedTokens::Head::truncate(int n_tokens, int n_sealed) {
  scores.truncate(n_tokens);
  tokens.resize(n_before(n_sealed * kPageTokens));
  std::erase_if(masks, [&](const PageMask& mask) { return mask.page >= n_sealed; });
}

// --- all heads ---

std::shared_ptr<const ProtectedTokens> ProtectedTokens::none(const Geometry& geometry) {
  auto tokens = std::make_shared<ProtectedTokens>();
  tokens->heads.resize(static_cast<std::size_t>(geometry.n_all_kv_heads()));
  return tokens;
}

}  // namespace kvant
