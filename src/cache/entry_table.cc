#include "cache/entry_table.h"

#include <utility>

#include "base/check.h"

namespace kvant {

EntryTable::EntryTable(std::vector<PagePool*> pools) : pools_(std::move(pools)), pages_(pools_.size()) {}

EntryTable::~EntryTable() {
  KVANT_CHECK(free_.size() == holders_.size(), "entries outlive their table");
}

// The lists grow before the new entry counts, so a failed allocation leaves no half-made entry.
void EntryTable::grow() {
  const std::size_t n = holders_.size() + 1;
  for (auto& pages : pages_) pages.resize(n, kNoPage);
  if (free_.capacity() < n) free_.reserve(2 * n);
  holders_.push_back(0);
  free_.push_back(static_cast<std::int32_t>(n - 1));
}

std::int32_t EntryTable::take() {
  if (free_.empty()) grow();
  const std::int32_t entry = free_.back();
  free_.pop_back();
  holders_[entry] = 1;
  return entry;
}

void EntryTable::release(std::int32_t entry) noexcept {
  KVANT_CHECK(holders_[entry] > 0, "released a free entry");
  if (--holders_[entry] > 0) return;
  for (int part = 0; part < n_parts(); ++part) drop(entry, part);
  free_.push_back(entry);
}

bool EntryTable::hold(std::int32_t entry, int part) {
  PageId& page = pages_[part][entry];
  if (page == kNoPage) page = pools_[part]->allocate();
  return page != kNoPage;
}

std::int64_t EntryTable::bytes_of(std::int32_t entry) const {
  std::size_t bytes = 0;
  for (int part = 0; part < n_parts(); ++part) bytes += has(entry, part) ? part_bytes(part) : 0;
  return static_cast<std::int64_t>(bytes);
}

void EntryTable::drop(std::int32_t entry, int part) noexcept {
  const PageId page = std::exchange(pages_[part][entry], kNoPage);
  if (page != kNoPage) pools_[part]->release(page);
}

}  // namespace kvant
