#include "cache/tail.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvant {

Tail::Tail(Tail&& other) noexcept
    : store_(other.store_),
      first_page_(other.first_page_),
      pages_(std::exchange(other.pages_, {})),
      n_committed_(other.n_committed_),
      spare_(std::exchange(other.spare_, {})),
      last_(std::exchange(other.last_, {})),
      last_page_(other.last_page_),
      replaced_(std::exchange(other.replaced_, {})) {}

// What was taken before a failure stays in `page`: release() it.
bool Tail::take(Page& page) const {
  for (PageId& id : page.ids) {
    id = store_->pool(page.room)->allocate();
    if (id == kNoPage) return false;
  }
  return true;
}

// A page of to.room tokens with the first n rows of `from`.
bool Tail::take_copy(const Page& from, int n, Page& to) const {
  if (!take(to)) return false;
  for (int s = 0; s < 2; ++s) {
    const std::byte* source = store_->pool(from.room)->data(from.ids[s]);
    std::byte* target = store_->pool(to.room)->data(to.ids[s]);
    store_->format->copy_rows(source, store_->context(s, from.room), n, store_->context(s, to.room), target);
  }
  return true;
}

void Tail::release(Page& page) const {
  for (PageId& id : page.ids) {
    if (id != kNoPage) store_->pool(page.room)->release(id);
    id = kNoPage;
  }
}

void Tail::release_all() {
  for (Page& page : pages_) release(page);
  for (Page& page : spare_) release(page);
  release(last_);
  release(replaced_);
  pages_.clear();
  spare_.clear();
}

// Moves pages_[i] with its first n rows to a page of another room; the old one is left in replaced_. It is
// built among the spare ones, which go back if anything fails.
bool Tail::move_open_page(std::size_t i, int n, int room) {
  spare_.push_back({.room = room});
  if (!take_copy(pages_[i], n, spare_.back())) return false;
  replaced_ = std::exchange(pages_[i], spare_.back());
  spare_.pop_back();
  return true;
}

TailRows Tail::rows(int side, int page) const {
  const Page& held = pages_[page - first_page_];
  return {store_->pool(held.room)->data(held.ids[side]), &store_->context(side, held.room)};
}

bool Tail::reserve(int length, int end, int n_whole) {
  const int open = length % kPageTokens;
  const auto n_pages = static_cast<std::size_t>(pages_for(end) - first_page_);
  pages_.reserve(n_pages);
  spare_.reserve(n_pages + 1);  // recycled ones, too
  if (open != 0) {
    const int room = tail_room(std::min(kPageTokens, open + end - length));
    if (room > pages_.back().room && !move_open_page(pages_.size() - 1, open, room)) return false;
  }
  for (int i = 0; i < n_whole; ++i) {
    spare_.emplace_back();
    if (!take(spare_.back())) return false;
  }
  if (end % kPageTokens == 0 || pages_for(end) == pages_for(length)) return true;
  last_page_ = end / kPageTokens;
  last_.room = tail_room(end % kPageTokens);
  return take(last_);
}

Tail::Page& Tail::open_page(int page) {
  const auto i = static_cast<std::size_t>(page - first_page_);
  if (i < pages_.size()) return pages_[i];
  if (last_.ids[0] != kNoPage && page == last_page_) {
    pages_.push_back(std::exchange(last_, {}));
  } else {
    KVANT_CHECK(!spare_.empty(), "append beyond what the step reserved");
    pages_.push_back(spare_.back());
    spare_.pop_back();
  }
  return pages_.back();
}

void Tail::append(int token, MatrixView<const float> k, MatrixView<const float> v) {
  const MatrixView<const float> values[2] = {k, v};
  const Page& page = open_page(token / kPageTokens);
  const int first = token % kPageTokens;
  KVANT_CHECK(first + k.rows <= page.room, "rows beyond a tail page");
  for (int s = 0; s < 2; ++s) {
    const PageContext& context = store_->context(s, page.room);
    std::byte* bytes = store_->pool(page.room)->data(page.ids[s]);
    for (int r = 0; r < k.rows; ++r)
      store_->format->encode_rows(values[s].row(r), first + r, 1, context, bytes);
  }
}

void Tail::recycle(int page) {
  const auto i = static_cast<std::size_t>(page - first_page_);
  if (i >= n_committed_) spare_.push_back(std::exchange(pages_[i], {}));
}

void Tail::commit(int first_page) {
  const auto n_gone = static_cast<std::ptrdiff_t>(first_page - first_page_);
  for (std::ptrdiff_t i = 0; i < n_gone; ++i) release(pages_[i]);
  pages_.erase(pages_.begin(), pages_.begin() + n_gone);
  first_page_ = first_page;
  for (Page& page : spare_) release(page);
  spare_.clear();
  release(last_);
  release(replaced_);
}

void Tail::abort() {
  for (std::size_t i = n_committed_; i < pages_.size(); ++i) release(pages_[i]);
  pages_.resize(std::min(pages_.size(), n_committed_));
  if (replaced_.ids[0] != kNoPage) {
    release(pages_.back());
    pages_.back() = std::exchange(replaced_, {});
  }
  for (Page& page : spare_) release(page);
  spare_.clear();
  release(last_);
}

bool Tail::truncate(int length) {
  const auto n_left = static_cast<std::size_t>(pages_for(length) - first_page_);
  const int open = length % kPageTokens;
  if (open != 0 && tail_room(open) < pages_[n_left - 1].room) {
    const bool moved = move_open_page(n_left - 1, open, tail_room(open));
    for (Page& page : spare_) release(page);
    spare_.clear();
    if (!moved) return false;
    release(replaced_);
  }
  for (std::size_t i = n_left; i < pages_.size(); ++i) release(pages_[i]);
  pages_.resize(n_left);
  return true;
}

bool Tail::restart(int page, int n) {
  if (n > 0) {
    spare_.push_back({.room = tail_room(n)});
    if (!take(spare_.back())) {
      release(spare_.back());
      spare_.clear();
      return false;
    }
  }
  for (Page& held : pages_) release(held);
  pages_ = std::exchange(spare_, {});
  first_page_ = page;
  return true;
}

bool Tail::copy_from(const Tail& from) {
  first_page_ = from.first_page_;
  pages_.reserve(from.pages_.size());
  for (const Page& page : from.pages_) {
    pages_.push_back({.room = page.room});
    if (!take_copy(page, page.room, pages_.back())) return false;
  }
  return true;
}

std::int64_t Tail::bytes() const {
  std::int64_t bytes = 0;
  for_each_page(
      [&](const PagePool* pool, PageId) { bytes += static_cast<std::int64_t>(pool->page_bytes()); });
  return bytes;
}

}  // namespace kvant
