// Tail: the unsealed pages of one (sequence, layer, KV head), both sides, in the plan's tail format.
//
// Every page but the open one at the end is whole. The open one takes memory for the tokens that it holds, in
// steps of kTailStep: when it is full it moves to a larger page, so that readers find its rows side by side.
// During a step, everything beyond the committed tokens is provisional, and the page that the open one moved
// from is kept until the step is closed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"
#include "cache/page_counts.h"
#include "cache/page_pool.h"
#include "format/format.h"

namespace kvant {

inline constexpr int kTailSizes = kPageTokens / kTailStep;

// What the tails of one (layer, KV head) share: a pool and a context for each size of page. Outlives them.
struct TailStore {
  const Format* format = nullptr;
  std::array<PagePool*, kTailSizes> pools{};
  std::array<std::array<PageContext, kTailSizes>, 2> contexts;  // by side

  PagePool* pool(int room) const { return pools[room / kTailStep - 1]; }
  const PageContext& context(int side, int room) const { return contexts[side][room / kTailStep - 1]; }
};

// One side of a page's bytes and how to read them.
struct TailRows {
  std::byte* bytes = nullptr;
  const PageContext* context = nullptr;
};

class Tail {
 public:
  explicit Tail(const TailStore& store) : store_(&store) {}
  Tail(Tail&& other) noexcept;
  Tail& operator=(Tail&&) = delete;
  ~Tail() { release_all(); }

  // One side of a page of the sequence.
  TailRows rows(int side, int page) const;

  // --- a step: begin, reserve, any number of append / recycle, then commit or abort ---
  void begin() { n_committed_ = pages_.size(); }
  // Makes room for tokens [length, end): n_whole whole pages beyond those that recycle() gives back, and the
  // page that is open at the end. False when memory is exhausted: call abort().
  bool reserve(int length, int end, int n_whole);
  // Writes rows of both sides, [n, d], as tokens from `token` on: n fit that token's page.
  void append(int token, MatrixView<const float> k, MatrixView<const float> v);
  // The page is sealed: takes it back if this step opened it. (A committed one may be needed after an abort.)
  void recycle(int page);
  // Lets go of pages before `first_page`.
  void commit(int first_page);
  void abort();

  // --- between steps ---
  // Keeps tokens before `length`, which lies in the tail or at its first token. False, and nothing changed,
  // when memory is exhausted.
  bool truncate(int length);
  // Becomes page `page` alone, with room for n tokens whose bytes are the caller's to write; n = 0: becomes
  // empty, and begins at that page. False, and nothing changed, when memory is exhausted.
  bool restart(int page, int n);
  // Makes this empty tail a copy of `from`. False when memory is exhausted.
  bool copy_from(const Tail& from);

  std::int64_t bytes() const;

  // Calls visit(pool, page) for every page held.
  template <class Visit>
  void for_each_page(const Visit& visit) const {
    for (const Page& page : pages_) {
      for (const PageId id : page.ids) {
        if (id != kNoPage) visit(store_->pool(page.room), id);
      }
    }
  }

 private:
  struct Page {
    std::array<PageId, 2> ids{kNoPage, kNoPage};  // by side; none: sealed in this step, storage reused
    int room = kPageTokens;                       // tokens
  };

  bool take(Page& page) const;
  bool take_copy(const Page& from, int n, Page& to) const;
  void release(Page& page) const;
  void release_all();
  bool move_open_page(std::size_t i, int n, int room);
  Page& open_page(int page);

  const TailStore* store_;
  int first_page_ = 0;
  std::vector<Page> pages_;  // page first_page_ + i
  std::size_t n_committed_ = 0;
  std::vector<Page> spare_;  // whole pages reserved for the step
  Page last_;                // reserved for page last_page_, open at the end of the step, if that opens it
  int last_page_ = 0;
  Page replaced_;  // what the open page moved from in this step
};

}  // namespace kvant
