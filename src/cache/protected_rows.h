// ProtectedRows holds the rows of the protected tokens of one (sequence, layer, KV head), unquantized in
// pages of their own in host memory. Row i belongs to token i of ProtectedTokens::Head. A step adds rows when
// it seals pages, and overwrites no committed row.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/token_mask.h"
#include "cache/page_pool.h"
#include "cache/page_store.h"
#include "recipe/plan.h"

namespace kvant {

// Returns the rows of a protected page. The number is the sink's tokens if only the sink is protected, and 0
// if nothing is.
int protected_page_rows(const Plan& plan, int layer);

// Holds what the protected rows of one (layer, KV head) share. The store outlives the rows.
struct ProtectedStore {
  const Format* format = nullptr;  // The format of the tail.
  PagePool* pool = nullptr;  // The pool of pages of rows_per_page rows, or null if nothing is protected.
  int rows_per_page = 0;
  std::array<PageContext, 2> contexts;  // by side
};

class ProtectedRows {
 public:
  explicit ProtectedRows(const ProtectedStore& store) : store_(&store) {}
  ProtectedRows(ProtectedRows&&) noexcept = default;
  ProtectedRows& operator=(ProtectedRows&&) = delete;
  ~ProtectedRows();

  // --- a step ---
  void begin() { n_committed_ = n_rows_; }
  // Takes pages for n_rows rows in all. Returns false or throws std::bad_alloc if memory is exhausted. The
  // caller must then call abort().
  bool reserve(int n_rows);
  // Adds rows of a page that is sealed. The caller then writes these rows, side by side.
  void add(int n_rows) { n_rows_ += n_rows; }
  // Writes the rows of `tokens`, which were added last, from their page's values [kPageTokens, d].
  void write(Side side, const TokenMask& tokens, const float* values);
  void commit();
  void abort();

  // --- between steps ---
  // Calls visit(row, values [d]) for one side of the rows [first, end).
  template <class Visit>
  void read(Side side, int first, int end, const Visit& visit) const {
    std::vector<float> values(static_cast<std::size_t>(store_->rows_per_page) * context(side).head_dim);
    for (int i = first; i < end; ++i) {
      const int row = i % store_->rows_per_page;
      store_->format->decode(data(side, i), row + 1, context(side), values.data());
      visit(i, values.data() + static_cast<std::ptrdiff_t>(row) * context(side).head_dim);
    }
  }
  // Keeps the first n_rows rows. Returns false or throws std::bad_alloc if memory is exhausted. The caller
  // must then drop this object.
  bool truncate(int n_rows);
  // Makes this empty object a copy of `from` that shares its full pages. Returns the errors of truncate().
  bool copy_from(const ProtectedRows& from);
  // Convert rows to and from the form of HeadImage. take() turns this empty object into the imaged object.
  // take() returns the errors of truncate().
  std::vector<std::byte> image(Side side) const;
  bool take(int n_rows, const std::array<std::vector<std::byte>, 2>& rows);

  // Appends the pages in the form that attention reads. `tokens` are the tokens of the rows.
  void list(const std::vector<int>& tokens, std::vector<PageView>& pages) const;
  // Calls visit(page id, whether others hold it, bytes of both sides) for every page.
  template <class Visit>
  void for_each_page(const Visit& visit) const {
    for (const PageId page : pages_[0]) {  // Pages of K and V come and go together, so K stands for both.
      visit(page, store_->pool->shared(page), 2 * static_cast<std::int64_t>(store_->pool->page_bytes()));
    }
  }
  std::int64_t bytes() const {
    std::int64_t total = 0;
    for_each_page([&](PageId /*page*/, bool /*shared*/, std::int64_t bytes) { total += bytes; });
    return total;
  }

 private:
  using PageList = std::vector<PageId>;

  int pages_of(int rows) const {
    return rows == 0 ? 0 : (rows + store_->rows_per_page - 1) / store_->rows_per_page;
  }
  const PageContext& context(Side side) const { return store_->contexts[static_cast<int>(side)]; }
  std::byte* data(Side side, int row) const {
    return store_->pool->data(pages_[static_cast<int>(side)][row / store_->rows_per_page]);
  }
  template <class Visit>
  void for_each_short_page(Side side, const Visit& visit) const;
  bool take(PageList& list, std::size_t count) const;
  bool take_copy(PageId from, PageList& list) const;
  void release_from(PageList& list, std::size_t first) const;

  const ProtectedStore* store_;
  std::array<PageList, 2> pages_;  // by side
  std::array<PageList, 2> spare_;  // Pages that the step has reserved.
  int n_rows_ = 0, n_committed_ = 0;
};

}  // namespace kvant
