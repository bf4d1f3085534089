#include "cache/protected_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvant {

int protected_page_rows(const Plan& plan, int layer) {
  constexpr int kRows = 32;  // A half-empty page of so few rows costs little memory.
  const LayerPlan& rules = plan.layers[layer];
  if (rules.protect <= 0 && rules.sink == 0) return 0;
  return rules.protect > 0 ? kRows : rules.sink;
}

ProtectedRows::~ProtectedRows() {
  for (auto* lists : {&pages_, &spare_}) {
    for (PageList& list : *lists) release_from(list, 0);
  }
}

bool ProtectedRows::take(PageList& list, std::size_t count) const {
  list.reserve(list.size() + count);
  for (std::size_t i = 0; i < count; ++i) {
    const PageId page = store_->pool->allocate();
    if (page == kNoPage) return false;
    list.push_back(page);
  }
  return true;
}

bool ProtectedRows::take_copy(PageId from, PageList& list) const {
  if (!take(list, 1)) return false;
  std::memcpy(store_->pool->data(list.back()), store_->pool->data(from), store_->pool->page_bytes());
  return true;
}

void ProtectedRows::release_from(PageList& list, std::size_t first) const {
  for (std::size_t i = first; i < list.size(); ++i) store_->pool->release(list[i]);
  if (first < list.size()) list.resize(first);
}

bool ProtectedRows::reserve(int n_rows) {
  const std::size_t n_new = pages_of(std::max(n_rows_, n_rows)) - pages_[0].size();
  for (int s = 0; s < 2; ++s) {
    pages_[s].reserve(pages_[s].size() + n_new);
    if (!take(spare_[s], n_new)) return false;
  }
  return true;
}

void ProtectedRows::write(Side side, const TokenMask& tokens, const float* values) {
  PageList& pages = pages_[static_cast<int>(side)];
  PageList& spare = spare_[static_cast<int>(side)];
  int row = n_rows_ - tokens.count();
  for (int t = 0; t < kPageTokens; ++t) {
    if (!tokens.test(t)) continue;
    if (row / store_->rows_per_page == std::ssize(pages)) {
      KVANT_CHECK(!spare.empty(), "protection beyond what the step reserved");
      pages.push_back(spare.back());
      spare.pop_back();
    }
    store_->format->encode_rows(values + static_cast<std::ptrdiff_t>(t) * context(side).head_dim,
                                row % store_->rows_per_page, 1, context(side), data(side, row));
    ++row;
  }
}

void ProtectedRows::commit() {
  for (PageList& spare : spare_) release_from(spare, 0);
}

void ProtectedRows::abort() {
  for (PageList& pages : pages_) release_from(pages, pages_of(n_committed_));
  for (PageList& spare : spare_) release_from(spare, 0);
  n_rows_ = n_committed_;
}

// Rows of the last page are written later, so the page must have no other holder.
bool ProtectedRows::truncate(int n_rows) {
  n_rows_ = n_rows;
  for (PageList& pages : pages_) {
    release_from(pages, pages_of(n_rows));
    if (n_rows == 0 || n_rows % store_->rows_per_page == 0 || !store_->pool->shared(pages.back())) continue;
    PageList copy;
    if (!take_copy(pages.back(), copy)) return false;
    store_->pool->release(pages.back());
    pages.back() = copy[0];
  }
  return true;
}

bool ProtectedRows::copy_from(const ProtectedRows& from) {
  for (int s = 0; s < 2; ++s) {
    pages_[s].reserve(from.pages_[s].size());
    for (std::size_t i = 0; i < from.pages_[s].size(); ++i) {
      const PageId page = from.pages_[s][i];
      if (static_cast<int>(i + 1) * store_->rows_per_page <= from.n_rows_) {
        store_->pool->retain(page);
        pages_[s].push_back(page);
      } else if (!take_copy(page, pages_[s])) {
        return false;
      }
    }
  }
  n_rows_ = from.n_rows_;
  return true;
}

// Calls visit(first row, context of a short page, first byte) for the pages of a side, in order.
template <class Visit>
void ProtectedRows::for_each_short_page(Side side, const Visit& visit) const {
  PageContext short_page = context(side);
  for (int row = 0; row < n_rows_; row += store_->rows_per_page) {
    short_page.page_tokens = std::min(store_->rows_per_page, n_rows_ - row);
    visit(row, short_page, store_->format->short_page_bytes(short_page.head_dim, row));
  }
}

std::vector<std::byte> ProtectedRows::image(Side side) const {
  if (n_rows_ == 0) return {};
  std::vector<std::byte> rows(store_->format->short_page_bytes(context(side).head_dim, n_rows_));
  for_each_short_page(side, [&](int row, const PageContext& short_page, std::size_t at) {
    store_->format->copy_rows(data(side, row), context(side), short_page.page_tokens, short_page,
                              rows.data() + at);
  });
  return rows;
}

bool ProtectedRows::take(int n_rows, const std::array<std::vector<std::byte>, 2>& rows) {
  n_rows_ = n_rows;
  for (const Side side : kSides) {
    const int s = static_cast<int>(side);
    if (!take(pages_[s], pages_of(n_rows))) return false;
    for_each_short_page(side, [&](int row, const PageContext& short_page, std::size_t at) {
      store_->format->copy_rows(rows[s].data() + at, short_page, short_page.page_tokens, context(side),
                                data(side, row));
    });
  }
  return true;
}

void ProtectedRows::list(const std::vector<int>& tokens, std::vector<PageView>& pages) const {
  for (int row = 0; row < n_rows_; row += store_->rows_per_page) {
    PageView view{.n_tokens = std::min(store_->rows_per_page, n_rows_ - row),
                  .is_protected = true,
                  .protected_tokens = &tokens[row]};
    view.k = {store_->format, data(Side::key, row), &context(Side::key)};
    view.v = {store_->format, data(Side::value, row), &context(Side::value)};
    pages.push_back(view);
  }
}

}  // namespace kvant
