// HeadState: the pages of one (sequence, layer, KV head), and the moves of a step on them.
//
// Tokens in order: sealed pages, then unsealed ones (the tail). Protected tokens are copied to pages
// of their own ("protected rows") when their page is sealed, and are masked out of it. Evicted tokens are
// masked out of their page and kept nowhere; a page of which nothing is left is freed. During a step,
// everything beyond the committed marks is provisional; nothing committed is overwritten before commit().
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/token_mask.h"
#include "cache/correction_state.h"
#include "cache/page_pool.h"
#include "cache/tail.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// The pools that serve one head.
struct HeadPools {
  std::array<PagePool*, 2> sealed{};    // by side
  const TailStore* tail = nullptr;      // unsealed pages
  PagePool* protected_pages = nullptr;  // of protected_page_rows() rows, both sides; null: none
};

// Rows of a protected page, 0 where nothing is protected: the layer's sink, where only that is.
int protected_page_rows(const Plan& plan, int layer);
// Tokens of the layer that are protected at most, with n_sealed pages sealed, the sink included.
int max_protected_tokens(const LayerPlan& layer, int n_sealed);
// When a head encodes a page before it is due (HeadState::seal_ahead): after that many tokens of the open
// page, 2 to 127. 0: never, since what is left out of its pages is only known when they are due, or nothing
// holds them until then.
int seal_ahead_turn(const Plan& plan, int layer, int kv_head);

// One side of a page, as attention reads it.
struct PageSide {
  const Format* format = nullptr;
  const std::byte* bytes = nullptr;
  const PageContext* context = nullptr;
};

// A page of both sides: tokens [first_token, first_token + n_tokens) but those in `masked`. Protected rows
// come as pages whose tokens are not consecutive: `is_protected` is set, and every one is visible to every
// query.
struct PageView {
  int first_token = 0;
  int n_tokens = 0;
  bool is_protected = false;
  const int* protected_tokens = nullptr;  // of protected rows: the absolute index of each
  TokenMask masked;
  PageSide k, v;
};

// What a step needs at most, by layer: see step_demand().
struct StepDemand {
  int tail_pages = 0;      // new whole tail pages, beyond those recycled within the step
  int sealed_pages = 0;    // pages to be sealed, a side
  int protected_rows = 0;  // protected tokens at the end of the step, at most
  int length = 0;          // tokens at the end of the step
  bool one_token = false;  // a decode step
};

class HeadState {
 public:
  // All references outlive the state.
  HeadState(const Plan& plan, int layer, int kv_head, const HeadPools& pools);
  HeadState(HeadState&&) noexcept = default;
  ~HeadState();

  int length() const { return length_; }            // tokens, provisional ones included
  int n_sealed() const { return n_sealed_; }        // pages
  int first_page() const { return first_sealed_; }  // older ones were freed (sliding window)

  // --- a step: reserve, any number of append / seal, then commit or abort ---
  // Marks the state that abort() returns to.
  void begin();
  // Takes pages for the demand. False when memory is exhausted: call abort().
  bool reserve(const StepDemand& demand);
  // Writes n new tokens at the end. k, v: [n, d], transformed, finite.
  void append(MatrixView<const float> k, MatrixView<const float> v);
  // Seals the oldest unsealed pages until n_pages are sealed. scratch: resized as needed.
  void seal_until(int n_pages, std::vector<float>& scratch);
  // Encodes the next page to be sealed before it is due, where the window still holds it. Pages of all layers
  // and heads are due at the same token; of decoded tokens each layer and head has another one for this,
  // so that no token takes much longer than the rest. After append; what queries see stays as it is.
  void seal_ahead(std::vector<float>& scratch);
  void commit();
  void abort();

  // The scores that choose which tokens a seal protects and evicts; the backend feeds it before it seals.
  // Null when the layer needs none.
  TokenScores* scores() { return layer_.needs_scores() ? &scores_ : nullptr; }
  const TokenScores* scores() const { return layer_.needs_scores() ? &scores_ : nullptr; }
  // The correction of the sealed pages; null when the recipe has none.
  const CorrectionState* correction() const { return correction_.empty() ? nullptr : &correction_; }

  // The pages that hold tokens >= first_visible, oldest first; protected rows come before the tail.
  void list_pages(int first_visible, std::vector<PageView>& pages) const;

  // --- between steps ---
  // Frees sealed pages that lie wholly before `token` (sliding window).
  void free_before(int token);
  // Keeps tokens [0, n_tokens). False, and nothing changed, when memory is exhausted.
  // Requires n_tokens <= length(), that the page of n_tokens was not freed, with a correction that n_tokens
  // is 0, lies in the tail, or behind the pages of a checkpoint, and with eviction that it is a page's first
  // token or lies in the tail. Scores keep what the queries of pages that had ended gave them.
  bool truncate(int n_tokens);
  // Remembers the correction for truncate().
  void checkpoint() { checkpoint_ = correction_; }
  // Makes this empty state a copy of `from` that shares its sealed and full protected pages. False when
  // memory is exhausted: drop this state.
  bool copy_from(const HeadState& from);

  // Bytes of the lists of protected tokens and of masked pages.
  static std::int64_t list_bytes(int n_protected, int n_masked_pages) {
    return static_cast<std::int64_t>(n_protected * sizeof(int) + n_masked_pages * sizeof(PageMask));
  }
  struct Bytes {
    // lists: masks and token lists of protected rows, scores, the correction and its checkpoint; tail: with
    // the open page's observers, and with what is encoded ahead.
    std::int64_t sealed = 0, protected_pages = 0, lists = 0, tail = 0;
    // tokens: not freed by a sliding window; evicted ones count, as those that the bytes stand for.
    int protected_tokens = 0, sealed_tokens = 0, tokens = 0;
    int masked_pages = 0;  // sealed pages that have tokens left out
  };
  Bytes bytes() const;

  // Calls visit(pool, page) for every page held: to count shared pages once.
  template <class Visit>
  void for_each_page(const Visit& visit) const {
    for (int s = 0; s < 2; ++s) {
      for (PageId p : sealed_[s]) {
        if (p != kNoPage) visit(pools_.sealed[s], p);
      }
      for (PageId p : ahead_[s]) visit(pools_.sealed[s], p);
      for (PageId p : protected_pages_[s]) visit(pools_.protected_pages, p);
    }
    tail_.for_each_page(visit);
  }

 private:
  using PageList = std::vector<PageId>;
  struct PageMask {
    int page = 0;
    TokenMask mask;
  };
  struct Marks {  // the committed state
    int length = 0, n_sealed = 0;
    std::size_t protected_rows = 0, masks = 0, ahead = 0;
  };

  std::size_t protected_pages(std::size_t rows) const;
  const SidePlan& side_plan(int s) const { return s == 0 ? head_.k : head_.v; }
  TokenMask protected_tokens(int page) const;
  void evict(std::size_t n_protected);
  void free_evicted_pages();
  void save_for_abort(const StepDemand& demand);
  void correct(int page, const TokenMask& mask);
  void read_tail(int s, int page, std::vector<float>& values) const;
  void encode_page(int s, const TokenMask& mask, const std::vector<float>& values, PageList& into);
  void seal_side(int s, int page, const TokenMask& mask, std::vector<float>& scratch);
  void protect_rows(int s, int page, const TokenMask& mask, const float* values, std::size_t first_row);
  void release_all(PageList& list, PagePool* pool);
  bool take_pages(PageList& list, PagePool* pool, std::size_t count);
  bool copy_page(PagePool* pool, PageId from, PageList& list);
  bool unshare_last_protected(std::size_t rows_left);
  void reopen(int s, int page, int n_tokens, std::size_t first_protected) const;
  void drop_sealed_from(int page, std::size_t protected_left);

  const Plan& plan_;
  const LayerPlan& layer_;
  const HeadPlan& head_;
  std::size_t protected_rows_;        // protected_page_rows() of the layer
  PageContext protected_context_[2];  // of protected pages
  HeadPools pools_;
  int ahead_turn_;            // tokens of the open page when it is this head's turn to seal ahead; 0: never
  bool seals_ahead_ = false;  // in this step

  int length_ = 0;
  int n_sealed_ = 0;
  int first_sealed_ = 0;
  std::array<PageList, 2> sealed_;  // page first_sealed_ + i; kNoPage: every token evicted or protected
  std::array<PageList, 2> ahead_;   // page n_sealed_, if it is encoded already
  Tail tail_;
  std::array<PageList, 2> protected_pages_;  // protected rows, protected_page_rows() a page
  std::vector<int> protected_tokens_;        // absolute token index of each protected row
  std::vector<PageMask> masks_;              // by page, ascending; with eviction, of every sealed page
  std::array<PageList, 2> spare_sealed_, spare_protected_;  // reserved for the step
  Marks committed_;
  TokenScores scores_;
  CorrectionState correction_, checkpoint_;
  // What a step that seals would overwrite; kept until it is closed.
  struct Saved {
    bool valid = false;
    std::vector<PageMask> masks;
    TokenScores scores;
    CorrectionState correction;
  } saved_;
};

// The demand of a step on a layer: `first` committed tokens, `n_sealed` sealed pages, n new tokens.
StepDemand step_demand(const Plan& plan, int layer, int first, int n_sealed, int n, bool is_prompt);

}  // namespace kvant
