#include "cache/page_ledger.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/schedule.h"

namespace kvant {
PageLedger::~PageLedger() {
  if (seals_ahead_) ahead_ = {};  // The entry is among the sealed ones.
  release(ahead_);
  release(replaced_);
  release_sealed_from(0);
  release_tail_from(0);
}

void PageLedger::release(PageEntry& entry) noexcept {
  if (entry.held()) store_.release(entry);
  entry = {};
}

void PageLedger::release_sealed_from(std::size_t first) noexcept {
  for (std::size_t i = first; i < sealed_.size(); ++i) store_.release({sealed_[i], kSealedRoom});
  if (first < sealed_.size()) sealed_.resize(first);
}

void PageLedger::release_tail_from(std::size_t first) noexcept {
  for (std::size_t i = first; i < tail_.size(); ++i) store_.release(tail_[i]);
  if (first < tail_.size()) tail_.resize(first);
}

void PageLedger::begin() {
  committed_ = {sealed_.size(), tail_.size(), ahead_};
  end_ = length_;
  end_sealed_ = n_sealed_;
  decodes_one_ = false;
}

bool PageLedger::hold_ahead() {
  if (ahead_.held() && !store_.shared(ahead_)) return true;
  PageEntry own = store_.take(kSealedRoom);
  if (!own.held()) return false;
  const PageEntry shared = std::exchange(ahead_, own);  // abort() returns to the committed entry.
  return !shared.held() || store_.copy(shared, 0, own);
}

// The page that was encoded ahead is the first page to be sealed.
bool PageLedger::push_sealed(int n_pages) {
  sealed_.reserve(sealed_.size() + n_pages);
  for (int i = 0; i < n_pages; ++i) {
    if (i == 0 && ahead_.held()) {
      if (!hold_ahead()) return false;
      sealed_.push_back(ahead_.id);
      seals_ahead_ = true;
      continue;
    }
    const PageEntry entry = store_.take(kSealedRoom);
    if (!entry.held()) return false;
    sealed_.push_back(entry.id);
  }
  return true;
}

bool PageLedger::push_tail(int room) {
  const PageEntry entry = store_.take(room);
  if (entry.held()) tail_.push_back(entry);
  return entry.held();
}

// Gives the open page an entry of this room that only this sequence holds.
bool PageLedger::own_open_page(int room) {
  PageEntry& open = tail_.back();
  if (open.room == room && !store_.shared(open)) return true;
  const PageEntry own = store_.take(room);
  if (!own.held()) return false;
  replaced_ = std::exchange(open, own);
  return store_.copy(replaced_, std::min(length_ % kPageTokens, room), own);
}

// Entries come in the order in which every head of the group opens and seals their pages. If this step has
// opened and sealed a page, its tail entry also serves a later page and is held twice. A committed entry does
// not, because an abort may need it.
bool PageLedger::reserve(int n_tokens, bool is_prompt) {
  end_ = length_ + n_tokens;
  decodes_one_ = n_tokens == 1 && !is_prompt;
  tail_.reserve(pages_for(end_) - first_tail_);
  if (const int open = length_ % kPageTokens; open != 0) {
    const int room = room_for(std::min(kPageTokens, open + n_tokens));
    if (!own_open_page(std::max(room, tail_.back().room))) return false;
  }
  int reused = pages_for(length_);
  const auto open = [&](int page) {
    const int last = end_ - page * kPageTokens;
    if (last < kPageTokens) return push_tail(room_for(last));
    if (rules_.tail_lasts || reused >= end_sealed_) return push_tail(kPageTokens);
    const PageEntry entry = tail(reused++);
    store_.retain(entry);
    tail_.push_back(entry);
    return true;
  };
  int opened = pages_for(length_);
  for (const Tile& tile :
       schedule(length_, n_tokens, {is_prompt, rules_.prefill, rules_.window, n_sealed_})) {
    if (rules_.seals) end_sealed_ = tile.n_sealed;
    for (; opened < pages_for(tile.append_end); ++opened) {
      if (!open(opened)) return false;
    }
    if (rules_.seals) end_sealed_ = tile.end_sealed;
  }
  return push_sealed(end_sealed_ - n_sealed_);
}

void PageLedger::commit() {
  if (!rules_.seals)
    end_sealed_ = std::max(end_sealed_, page_counts(end_, rules_.window, rules_.sliding_window).freed);
  const auto n_gone = static_cast<std::ptrdiff_t>(end_sealed_ - first_tail_);
  for (std::ptrdiff_t i = 0; i < n_gone; ++i) store_.release(tail_[i]);
  if (n_gone > 0) tail_.erase(tail_.begin(), tail_.begin() + n_gone);
  first_tail_ = std::max(first_tail_, end_sealed_);
  release(replaced_);
  if (committed_.ahead != ahead_) release(committed_.ahead);
  if (std::exchange(seals_ahead_, false)) ahead_ = {};
  length_ = end_;
  n_sealed_ = end_sealed_;
  forget_freed();
}

void PageLedger::forget_freed() {
  const int freed = freed_pages(length_, rules_.sliding_window, n_sealed_);
  if (freed <= first_sealed_) return;
  const std::ptrdiff_t n = rules_.seals ? freed - first_sealed_ : 0;
  for (std::ptrdiff_t i = 0; i < n; ++i) store_.release({sealed_[i], kSealedRoom});
  sealed_.erase(sealed_.begin(), sealed_.begin() + n);
  first_sealed_ = freed;
}

void PageLedger::abort() {
  if (std::exchange(seals_ahead_, false))
    sealed_.erase(sealed_.begin() + static_cast<std::ptrdiff_t>(committed_.sealed));
  release_sealed_from(committed_.sealed);
  release_tail_from(committed_.tail);
  if (replaced_.held()) {
    release(tail_.back());
    tail_.back() = std::exchange(replaced_, {});
  }
  if (ahead_ != committed_.ahead) {
    release(ahead_);
    ahead_ = committed_.ahead;
  }
  end_ = length_;
  end_sealed_ = n_sealed_;
}

void PageLedger::copy_from(const PageLedger& from) {
  sealed_ = from.sealed_;  // Nothing is held before all lists have their memory.
  try {
    tail_ = from.tail_;
  } catch (...) {
    sealed_.clear();
    throw;
  }
  ahead_ = from.ahead_;
  length_ = from.length_;
  n_sealed_ = from.n_sealed_;
  first_sealed_ = from.first_sealed_;
  first_tail_ = from.first_tail_;
  for_each_entry([&](int /*page*/, PageEntry entry) { store_.retain(entry); });
  begin();
}

bool PageLedger::take_all(int length, int n_sealed, int first_page) {
  first_sealed_ = first_page;
  if (!push_sealed(n_sealed - first_page)) return false;
  first_tail_ = n_sealed;
  tail_.reserve(pages_for(length) - n_sealed);
  for (int page = n_sealed; page < pages_for(length); ++page) {
    if (!push_tail(room_for(std::min(kPageTokens, length - page * kPageTokens)))) return false;
  }
  length_ = length;
  n_sealed_ = n_sealed;
  begin();
  return true;
}

bool PageLedger::truncate(int n_tokens, const std::function<void(PageEntry, PageEntry)>& reopen) {
  const int page = n_tokens / kPageTokens;
  const int open = n_tokens % kPageTokens;
  if (page <= n_sealed_) release(ahead_);
  if (page >= n_sealed_) {
    length_ = n_tokens;
    release_tail_from(static_cast<std::size_t>(pages_for(n_tokens) - first_tail_));
    if (open != 0 && room_for(open) < tail_.back().room) {
      if (!own_open_page(room_for(open))) return false;
      release(replaced_);
    }
    begin();
    return true;
  }
  release_tail_from(0);
  first_tail_ = page;
  if (open != 0) {
    tail_.reserve(1);
    if (!push_tail(room_for(open))) return false;
    reopen(sealed(page), tail_.back());
  }
  first_sealed_ = std::min(first_sealed_, page);  // Only a cut at 0 may lie before first_sealed_.
  release_sealed_from(static_cast<std::size_t>(page - first_sealed_));
  n_sealed_ = page;
  length_ = n_tokens;
  begin();
  return true;
}

}  // namespace kvant
