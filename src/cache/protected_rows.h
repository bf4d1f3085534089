// ProtectedRows holds the protected tokens of one (sequence, layer, KV head), unquantized in pages of their
// own. The tokens are the sink, and tokens that attention has chosen. A step adds rows when it seals pages,
// and overwrites no committed row.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/token_mask.h"
#include "cache/page_pool.h"
#include "cache/page_store.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// Returns the rows of a protected page. The number is the sink's tokens if only the sink is protected, and 0
// if nothing is.
int protected_page_rows(const Plan& plan, int layer);
// Returns the maximum number of protected tokens of the layer with n_sealed sealed pages, including the sink.
int max_protected_tokens(const LayerPlan& layer, int n_sealed);
// Returns the maximum number of protected tokens without the sink (VQuant section 5).
int protection_cap(const LayerPlan& layer, int n_sealed);
// Returns the tokens to protect when page `page` is sealed: the sink, and the tokens that `scores` choose, if
// not null. n_protected counts the protected tokens of earlier pages.
TokenMask tokens_to_protect(const LayerPlan& layer, const TokenScores* scores, int page, int n_protected);

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

  // Returns the absolute index of each row's token, in ascending order.
  std::span<const int> tokens() const { return tokens_; }
  int size() const { return static_cast<int>(tokens_.size()); }

  // --- a step ---
  void begin() { n_committed_ = tokens_.size(); }
  // Takes pages for n_rows rows in all. Returns false or throws std::bad_alloc if memory is exhausted. The
  // caller must then call abort().
  bool reserve(int n_rows);
  // Adds tokens of a page that is sealed. The caller then writes their rows, side by side.
  void add(int page, const TokenMask& tokens);
  // Writes the rows of the tokens that were added last, from their page's values [kPageTokens, d].
  void write(Side side, const TokenMask& tokens, const float* values);
  void commit();
  void abort();

  // --- between steps ---
  // Calls visit(token, values [d]) for one side of the tokens in [first, end).
  template <class Visit>
  void read(Side side, int first, int end, const Visit& visit) const {
    std::vector<float> values(static_cast<std::size_t>(store_->rows_per_page) * context(side).head_dim);
    for (std::size_t i = rows_before(first); i < rows_before(end); ++i) {
      const auto row = static_cast<int>(i % store_->rows_per_page);
      store_->format->decode(data(side, i), row + 1, context(side), values.data());
      visit(tokens_[i], values.data() + static_cast<std::ptrdiff_t>(row) * context(side).head_dim);
    }
  }
  // Keeps the tokens before `token`. Returns false or throws std::bad_alloc if memory is exhausted. The
  // caller must then drop this object.
  bool truncate(int token);
  // Makes this empty object a copy of `from` that shares its full pages. Returns the errors of truncate().
  bool copy_from(const ProtectedRows& from);
  // Convert rows to and from the form of HeadImage. take() turns this empty object into the imaged object.
  // take() returns the errors of truncate().
  std::vector<std::byte> image(Side side) const;
  bool take(std::vector<int> tokens, const std::array<std::vector<std::byte>, 2>& rows);

  // Appends the pages in the form that attention reads.
  void list(std::vector<PageView>& pages) const;
  // Calls visit(page id, whether others hold it, bytes of both sides) for every page.
  template <class Visit>
  void for_each_page(const Visit& visit) const {
    for (const PageId page : pages_[0]) {  // Pages of K and V come and go together, so K stands for both.
      visit(page, store_->pool->shared(page), 2 * static_cast<std::int64_t>(store_->pool->page_bytes()));
    }
  }

 private:
  using PageList = std::vector<PageId>;

  std::size_t pages_of(std::size_t rows) const {
    return rows == 0 ? 0 : (rows + store_->rows_per_page - 1) / store_->rows_per_page;
  }
  std::size_t rows_before(int token) const;
  const PageContext& context(Side side) const { return store_->contexts[static_cast<int>(side)]; }
  std::byte* data(Side side, std::size_t row) const {
    return store_->pool->data(pages_[static_cast<int>(side)][row / store_->rows_per_page]);
  }
  template <class Visit>
  void for_each_short_page(Side side, const Visit& visit) const;
  bool take(PageList& list, std::size_t count) const;
  bool take_copy(PageId from, PageList& list) const;
  void release_from(PageList& list, std::size_t first) const;

  const ProtectedStore* store_;
  std::array<PageList, 2> pages_;  // by side
  std::vector<int> tokens_;
  std::array<PageList, 2> spare_;  // Pages that the step has reserved.
  std::size_t n_committed_ = 0;    // rows
};

}  // namespace kvant
