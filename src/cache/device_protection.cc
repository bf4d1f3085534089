#include "cache/device_protection.h"

#include <algorithm>

#include "cache/page_counts.h"

namespace kvant {

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
  for (const EntryHold& page : pages) other.pages.push_back(page.share());
  other.observers = observers.share();
  other.first_observer = first_observer;
  return other;
}

// Entries keep no rows after the last one, and the observers of an ended page are gone.
void DeviceProtection::truncate(int n_tokens, const ProtectedTokens& left) {
  pages.resize(std::min<std::size_t>(pages.size(), pages_for(left.most_rows())));
  const bool is_open = first_observer / kPageTokens == n_tokens / kPageTokens;
  if (first_observer >= 0 && first_observer < n_tokens && is_open) return;
  observers.reset();
  first_observer = -1;
}

int first_observer_of(int page_end, int first, int first_observer) {
  return std::max(page_end - kObservers, first_observer >= 0 ? first_observer : first);
}

}  // namespace kvant
