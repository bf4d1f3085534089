#include "cache/head_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cache/page_counts.h"
#include "cache/schedule.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

// The cap on protected tokens beyond the sink, with n_sealed pages sealed (VQuant section 5).
int protection_cap(const LayerPlan& layer, int n_sealed) {
  return static_cast<int>(std::ceil(layer.protect * n_sealed * kPageTokens));
}

}  // namespace

int max_protected_tokens(const LayerPlan& layer, int n_sealed) {
  return n_sealed == 0 ? 0 : layer.sink + protection_cap(layer, n_sealed);
}

int seal_ahead_turn(const Plan& plan, int layer, int kv_head) {
  const LayerPlan& rules = plan.layers[layer];
  if (rules.window < kPageTokens || rules.needs_scores() || rules.evict > 0) return 0;
  const Geometry& g = plan.geometry;
  return 2 + (layer * g.n_kv_heads + kv_head) * (kPageTokens - 2) / (g.n_layers * g.n_kv_heads);
}

int protected_page_rows(const Plan& plan, int layer) {
  constexpr int kRows = 32;  // few enough that a page left half empty costs little
  const LayerPlan& rules = plan.layers[layer];
  if (rules.protect <= 0 && rules.sink == 0) return 0;
  return rules.protect > 0 ? kRows : rules.sink;
}

HeadState::HeadState(const Plan& plan, int layer, int kv_head, const HeadPages& pages)
    : plan_(plan),
      layer_(plan.layers[layer]),
      head_(plan.head(layer, kv_head)),
      protected_rows_(protected_page_rows(plan, layer)),
      pages_(pages),
      index_(pages.store->head_index(layer, kv_head)),
      ahead_turn_(seal_ahead_turn(plan, layer, kv_head)) {
  for (const Side side : kSides) {
    protected_context_[static_cast<int>(side)] = {
        plan.geometry.head_dim, head_.side(side).context.constants, {}, static_cast<int>(protected_rows_)};
  }
}

HeadState::~HeadState() {
  for (int s = 0; s < 2; ++s) {
    release_all(protected_pages_[s], pages_.protected_pages);
    release_all(spare_protected_[s], pages_.protected_pages);
  }
}

void HeadState::release_all(PageList& list, PagePool* pool) {
  for (const PageId page : list) pool->release(page);
  list.clear();
}

bool HeadState::take_pages(PageList& list, PagePool* pool, std::size_t count) {
  list.reserve(list.size() + count);
  for (std::size_t i = 0; i < count; ++i) {
    const PageId page = pool->allocate();
    if (page == kNoPage) return false;
    list.push_back(page);
  }
  return true;
}

std::size_t HeadState::protected_pages(std::size_t rows) const {
  return protected_rows_ == 0 ? 0 : (rows + protected_rows_ - 1) / protected_rows_;
}

void HeadState::begin() {
  committed_ = {protected_tokens_.size(), masks_.size(), ahead_};
}

bool HeadState::seals_ahead() const {
  const PageLedger& ledger = *pages_.ledger;
  return !ahead_ && ahead_turn_ > 0 && ledger.decodes_one() && ledger.end_sealed() == n_sealed_ &&
         ledger.end() % kPageTokens == ahead_turn_ && ledger.end() >= (n_sealed_ + 1) * kPageTokens;
}

bool HeadState::reserve_protected(int n_sealed) {
  const std::size_t rows =
      std::max<std::size_t>(protected_tokens_.size(), max_protected_tokens(layer_, n_sealed));
  const std::size_t n_new = protected_pages(rows) - protected_pages_[0].size();
  protected_tokens_.reserve(rows);
  for (int s = 0; s < 2; ++s) {
    protected_pages_[s].reserve(protected_pages_[s].size() + n_new);
    if (!take_pages(spare_protected_[s], pages_.protected_pages, n_new)) return false;
  }
  return true;
}

bool HeadState::reserve() {
  const PageLedger& ledger = *pages_.ledger;
  const int end = ledger.end(), pages_due = ledger.end_sealed() - n_sealed_;
  if (layer_.needs_scores())
    scores_.reserve(pages_for(end) * kPageTokens, plan_.geometry.group(), plan_.geometry.head_dim);
  seals_ahead_ = seals_ahead();
  if (seals_ahead_ && !pages_.store->hold(ledger.ahead(), index_)) return false;
  if (pages_due == 0 && pages_for(end) == pages_for(length_) && end % kPageTokens != 0) return true;
  save_for_abort(pages_due);
  if (pages_due == 0) return true;
  for (int page = n_sealed_; page < ledger.end_sealed(); ++page) {
    if (!pages_.store->hold(ledger.sealed(page), index_)) return false;
  }
  if (layer_.evict > 0 || max_protected_tokens(layer_, ledger.end_sealed()) > 0)
    masks_.reserve(masks_.size() + pages_due);
  return reserve_protected(ledger.end_sealed());
}

void HeadState::append(MatrixView<const float> k, MatrixView<const float> v) {
  for (int done = 0; done < k.rows;) {
    const int n = std::min(k.rows - done, kPageTokens - length_ % kPageTokens);
    pages_.store->append(pages_.ledger->tail(length_ / kPageTokens), index_, length_ % kPageTokens,
                         k.slice(done, n), v.slice(done, n));
    length_ += n;
    done += n;
  }
}

// A step that seals, or ends a page, changes masks, scores and correction in place.
void HeadState::save_for_abort(int pages_due) {
  if (!layer_.needs_scores() && layer_.evict == 0 && !head_.corrected) return;
  saved_.masks = masks_;
  saved_.scores = scores_;
  saved_.correction = correction_;
  saved_.valid = true;
  if (pages_due > 0 && head_.corrected) correction_.reserve(plan_.geometry.head_dim);
}

TokenMask HeadState::protected_tokens(int page) const {
  const int room = layer_.sink + protection_cap(layer_, page + 1) -
                   static_cast<int>(protected_tokens_.size()) - (page == 0 ? layer_.sink : 0);
  TokenMask mask = layer_.protect > 0 ? scores_.select(page, layer_.protect, room, layer_.sink) : TokenMask{};
  for (int t = 0; page == 0 && t < layer_.sink; ++t) mask.set(t);
  return mask;
}

// Masks tokens of sealed pages, the newest of them in the making, until their share is evicted: the least
// attended first, of equals the oldest. n_protected: protected tokens of all these pages.
void HeadState::evict(std::size_t n_protected) {
  std::vector<std::pair<float, int>> left;  // score, token
  for (const PageMask& page : masks_) {
    for (int t = 0; t < kPageTokens; ++t) {
      const int token = page.page * kPageTokens + t;
      if (!page.mask.test(t)) left.emplace_back(scores_.score(token), token);
    }
  }
  const int n_sealed = static_cast<int>(masks_.size()) * kPageTokens;
  const int n_evicted = n_sealed - static_cast<int>(left.size() + n_protected);
  const int due = static_cast<int>(layer_.evict * n_sealed) - n_evicted;
  const auto n = std::clamp<std::ptrdiff_t>(due, 0, std::ssize(left));
  std::nth_element(left.begin(), left.begin() + n, left.end());
  for (const auto& [score, token] : std::span(left).first(n)) {
    masks_[token / kPageTokens].mask.set(token % kPageTokens);
  }
}

// Committed pages stay until a step is committed, since an abort wants them back, and while a fork shares
// them.
void HeadState::free_evicted_pages() {
  if (layer_.evict == 0) return;
  for (const PageMask& page : masks_) {
    const PageEntry entry = pages_.ledger->sealed(page.page);
    if (is_gone(page) && !pages_.store->shared(entry)) pages_.store->drop(entry, index_);
  }
}

// Adds the sealed page's rounding errors to the correction.
void HeadState::correct(int page, const TokenMask& mask) {
  const int d = plan_.geometry.head_dim;
  const std::size_t size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<float> errors(size), rounded(size);
  read_tail(Side::key, page, errors);
  const PageEntry entry = pages_.ledger->sealed(page);
  pages_.store->read(entry, index_, Side::key, kPageTokens, rounded.data());
  for (std::size_t i = 0; i < size; ++i) errors[i] -= rounded[i];
  pages_.store->read(entry, index_, Side::value, kPageTokens, rounded.data());
  correction_.add(head_.k.context.constants.find(kKeyAdapter), {errors.data(), kPageTokens, d},
                  {rounded.data(), kPageTokens, d}, mask);
}

void HeadState::protect_rows(int s, int page, const TokenMask& mask, const float* values,
                             std::size_t first_row) {
  std::size_t row = first_row;
  for (int t = 0; t < kPageTokens; ++t) {
    if (!mask.test(t)) continue;
    if (row / protected_rows_ == protected_pages_[s].size()) {
      KVANT_CHECK(!spare_protected_[s].empty(), "protection beyond what the step reserved");
      protected_pages_[s].push_back(spare_protected_[s].back());
      spare_protected_[s].pop_back();
    }
    if (s == 0) protected_tokens_.push_back(page * kPageTokens + t);
    plan_.tail->encode_rows(values + static_cast<std::ptrdiff_t>(t) * plan_.geometry.head_dim,
                            static_cast<int>(row % protected_rows_), 1, protected_context_[s],
                            pages_.protected_pages->data(protected_pages_[s][row / protected_rows_]));
    ++row;
  }
}

void HeadState::read_tail(Side side, int page, std::vector<float>& values) const {
  values.resize(static_cast<std::size_t>(kPageTokens) * plan_.geometry.head_dim);
  pages_.store->read(pages_.ledger->tail(page), index_, side, kPageTokens, values.data());
}

void HeadState::seal_ahead(std::vector<float>& scratch) {
  if (!seals_ahead_ || length_ < pages_.ledger->end()) return;
  seals_ahead_ = false;
  const TokenMask left_out = protected_tokens(n_sealed_);
  for (const Side side : kSides) {
    read_tail(side, n_sealed_, scratch);
    pages_.store->seal(pages_.ledger->ahead(), index_, side, left_out, scratch.data());
  }
  ahead_ = true;
}

void HeadState::seal_until(int n_pages, std::vector<float>& scratch) {
  for (; n_sealed_ < n_pages; ++n_sealed_) {
    const TokenMask protected_set = protected_tokens(n_sealed_);
    const std::size_t first_row = protected_tokens_.size();
    if (!protected_set.empty() || layer_.evict > 0) masks_.push_back({n_sealed_, protected_set});
    if (layer_.evict > 0) evict(first_row + protected_set.count());
    const TokenMask left_out = layer_.evict > 0 ? masks_.back().mask : protected_set;
    const bool is_encoded = std::exchange(ahead_, false) || (layer_.evict > 0 && is_gone(masks_.back()));
    for (const Side side : kSides) {
      read_tail(side, n_sealed_, scratch);
      if (!is_encoded)
        pages_.store->seal(pages_.ledger->sealed(n_sealed_), index_, side, left_out, scratch.data());
      protect_rows(static_cast<int>(side), n_sealed_, protected_set, scratch.data(), first_row);
    }
    if (!correction_.empty()) correct(n_sealed_, protected_set);
  }
}

void HeadState::commit() {
  KVANT_CHECK(length_ == pages_.ledger->length() && n_sealed_ == pages_.ledger->n_sealed(),
              "a layer was not run in the step");
  free_evicted_pages();
  const PageEntry ahead = pages_.ledger->ahead();
  if (ahead.held() && !ahead_) pages_.store->drop(ahead, index_);
  for (int s = 0; s < 2; ++s) release_all(spare_protected_[s], pages_.protected_pages);
  saved_ = {};
}

void HeadState::abort() {
  ahead_ = committed_.ahead;
  const PageEntry ahead = pages_.ledger->ahead();
  if (ahead.held() && !ahead_) pages_.store->drop(ahead, index_);
  for (int s = 0; s < 2; ++s) {
    const std::size_t left = protected_pages(committed_.protected_rows);
    for (std::size_t i = left; i < protected_pages_[s].size(); ++i)
      pages_.protected_pages->release(protected_pages_[s][i]);
    if (protected_pages_[s].size() > left) protected_pages_[s].resize(left);
    release_all(spare_protected_[s], pages_.protected_pages);
  }
  protected_tokens_.resize(committed_.protected_rows);
  masks_.resize(committed_.masks);
  length_ = pages_.ledger->length();
  n_sealed_ = pages_.ledger->n_sealed();
  if (saved_.valid) {
    masks_ = std::move(saved_.masks);
    scores_ = std::move(saved_.scores);
    correction_ = std::move(saved_.correction);
    saved_ = {};
  } else if (layer_.needs_scores()) {
    scores_.truncate(length_);
  }
}

bool HeadState::has_pages(int page, PageEntry entry) const {
  if (entry.room != kSealedRoom) return true;
  if (page == n_sealed_) return ahead_;
  return layer_.evict == 0 || !is_gone(masks_[page]);
}

void HeadState::list_pages(int first_visible, std::vector<PageView>& pages) const {
  pages.clear();
  const PageLedger& ledger = *pages_.ledger;
  const auto add = [&](PageView view, PageEntry entry) {
    view.k = pages_.store->side(entry, index_, Side::key);
    view.v = pages_.store->side(entry, index_, Side::value);
    pages.push_back(view);
  };
  const auto protected_set = [&](int s, PageId id) {
    return PageSide{plan_.tail, pages_.protected_pages->data(id), &protected_context_[s]};
  };
  auto mask = masks_.begin();
  for (int page = std::max(first_page(), first_visible / kPageTokens); page < n_sealed_; ++page) {
    while (mask != masks_.end() && mask->page < page) ++mask;
    PageView view{.first_token = page * kPageTokens, .n_tokens = kPageTokens};
    if (mask != masks_.end() && mask->page == page) {
      if (is_gone(*mask)) continue;
      view.masked = mask->mask;
    }
    add(view, ledger.sealed(page));
  }
  const int n_protected = static_cast<int>(protected_tokens_.size());
  const int rows = static_cast<int>(protected_rows_);
  for (int row = 0; row < n_protected; row += rows) {
    PageView view{.n_tokens = std::min(rows, n_protected - row),
                  .is_protected = true,
                  .protected_tokens = &protected_tokens_[row]};
    view.k = protected_set(0, protected_pages_[0][row / rows]);
    view.v = protected_set(1, protected_pages_[1][row / rows]);
    pages.push_back(view);
  }
  for (int page = std::max(n_sealed_, first_visible / kPageTokens); page * kPageTokens < length_; ++page) {
    add({.first_token = page * kPageTokens, .n_tokens = std::min(kPageTokens, length_ - page * kPageTokens)},
        ledger.tail(page));
  }
}

bool HeadState::unshare_last_protected(std::size_t rows_left) {
  if (protected_rows_ == 0 || rows_left % protected_rows_ == 0) return true;
  const std::size_t last = rows_left / protected_rows_;
  for (int s = 0; s < 2; ++s) {
    if (!pages_.protected_pages->shared(protected_pages_[s][last])) continue;
    PageList copy;
    if (!copy_page(pages_.protected_pages, protected_pages_[s][last], copy)) return false;
    pages_.protected_pages->release(protected_pages_[s][last]);
    protected_pages_[s][last] = copy[0];
  }
  return true;
}

void HeadState::reopen(int page, int n_tokens, PageEntry sealed, PageEntry tail) const {
  const std::ptrdiff_t d = plan_.geometry.head_dim;
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d);
  for (const Side side : kSides) {
    pages_.store->read(sealed, index_, side, n_tokens, values.data());
    pages_.store->write_rows(tail, index_, side, 0, n_tokens, values.data());
    const auto s = static_cast<int>(side);
    for (std::size_t i = protected_before(page * kPageTokens);
         i < protected_tokens_.size() && protected_tokens_[i] < page * kPageTokens + n_tokens; ++i) {
      const int row = static_cast<int>(i % protected_rows_);
      plan_.tail->decode(pages_.protected_pages->data(protected_pages_[s][i / protected_rows_]), row + 1,
                         protected_context_[s], values.data());
      pages_.store->write_rows(tail, index_, side, protected_tokens_[i] % kPageTokens, 1,
                               values.data() + row * d);
    }
  }
}

// Rows of protected tokens before `token`.
std::size_t HeadState::protected_before(int token) const {
  return std::lower_bound(protected_tokens_.begin(), protected_tokens_.end(), token) -
         protected_tokens_.begin();
}

bool HeadState::truncate(int n_tokens) {
  const int page = n_tokens / kPageTokens;
  if (page <= n_sealed_) ahead_ = false;
  length_ = n_tokens;
  scores_.truncate(n_tokens);
  if (page >= n_sealed_) return true;
  const std::size_t rows_left = protected_before(page * kPageTokens);
  if (!unshare_last_protected(rows_left)) return false;
  for (PageList& pages : protected_pages_) {
    for (std::size_t i = protected_pages(rows_left); i < pages.size(); ++i)
      pages_.protected_pages->release(pages[i]);
    pages.resize(protected_pages(rows_left));
  }
  protected_tokens_.resize(rows_left);
  std::erase_if(masks_, [&](const PageMask& m) { return m.page >= page; });
  if (n_tokens == 0) checkpoint_ = {};
  correction_ = checkpoint_;
  n_sealed_ = page;
  return true;
}

bool HeadState::copy_page(PagePool* pool, PageId from, PageList& list) {
  if (!take_pages(list, pool, 1)) return false;
  std::memcpy(pool->data(list.back()), pool->data(from), pool->page_bytes());
  return true;
}

bool HeadState::copy_from(const HeadState& from) {
  const std::size_t full_protected =
      protected_rows_ == 0 ? 0 : from.protected_tokens_.size() / protected_rows_;
  for (int s = 0; s < 2; ++s) {
    for (std::size_t i = 0; i < from.protected_pages_[s].size(); ++i) {
      if (i >= full_protected) {
        if (!copy_page(pages_.protected_pages, from.protected_pages_[s][i], protected_pages_[s]))
          return false;
        continue;
      }
      protected_pages_[s].push_back(from.protected_pages_[s][i]);
      pages_.protected_pages->retain(from.protected_pages_[s][i]);
    }
  }
  protected_tokens_ = from.protected_tokens_;
  masks_ = from.masks_;
  scores_ = from.scores_;
  correction_ = from.correction_;
  checkpoint_ = from.checkpoint_;
  length_ = from.length_;
  n_sealed_ = from.n_sealed_;
  ahead_ = from.ahead_;
  return true;
}

void HeadState::save(ByteWriter& to) const {
  to.write(static_cast<std::int32_t>(protected_tokens_.size()));
  to.write_all(std::span<const int>(protected_tokens_));
  const int n = static_cast<int>(protected_tokens_.size()), rows = static_cast<int>(protected_rows_);
  for (int s = 0; s < 2; ++s) {
    for (int row = 0; row < n; row += rows) {
      PageContext context = protected_context_[s];
      const int n_here = context.page_tokens = std::min(rows, n - row);
      plan_.tail->copy_rows(pages_.protected_pages->data(protected_pages_[s][row / rows]),
                            protected_context_[s], n_here, context,
                            to.skip(plan_.tail->short_page_bytes(context.head_dim, n_here)));
    }
  }
  to.write(static_cast<std::int32_t>(masks_.size()));
  for (const PageMask& mask : masks_) {
    to.write(static_cast<std::int32_t>(mask.page));
    to.write(mask.mask.words);
  }
  if (layer_.needs_scores()) scores_.save(to);
  if (!head_.corrected) return;
  correction_.save(to);
  checkpoint_.save(to);
}

bool HeadState::load_protected(ByteReader& from) {
  const int n = from.read_int(0, max_protected_tokens(layer_, n_sealed_)),
            rows = static_cast<int>(protected_rows_);
  protected_tokens_ = from.read_all<int>(n);
  from.require(std::is_sorted(protected_tokens_.begin(), protected_tokens_.end()) &&
               (n == 0 || (from.ok() && protected_tokens_.front() >= 0 &&
                           protected_tokens_.back() < n_sealed_ * kPageTokens)));
  for (int s = 0; s < 2; ++s) {
    for (int row = 0; from.ok() && row < n; row += rows) {
      PageContext context = protected_context_[s];
      const int n_here = context.page_tokens = std::min(rows, n - row);
      const std::byte* bytes = from.skip(plan_.tail->short_page_bytes(context.head_dim, n_here));
      if (bytes == nullptr) break;
      if (!take_pages(protected_pages_[s], pages_.protected_pages, 1)) return false;
      plan_.tail->copy_rows(bytes, context, n_here, protected_context_[s],
                            pages_.protected_pages->data(protected_pages_[s].back()));
    }
  }
  return true;
}

bool HeadState::load(ByteReader& from) {
  length_ = pages_.ledger->length();
  n_sealed_ = pages_.ledger->n_sealed();
  if (!load_protected(from)) return false;
  const int n_masks = from.read_int(0, n_sealed_);
  for (int i = 0, next = 0; i < n_masks && from.ok(); ++i) {
    PageMask mask{.page = from.read_int(next, n_sealed_ - 1)};
    next = mask.page + 1;
    mask.mask.words = from.read<decltype(mask.mask.words)>();
    masks_.push_back(mask);
  }
  from.require(layer_.evict == 0 || n_masks == n_sealed_);
  const Geometry& g = plan_.geometry;
  if (layer_.needs_scores()) scores_.load(from, length_, g.group(), g.head_dim);
  if (head_.corrected) {
    correction_.load(from, g.head_dim);
    checkpoint_.load(from, g.head_dim);
  }
  return true;
}

void HeadState::export_page(int page, std::byte* entry) const {
  if (has_pages(page, pages_.ledger->sealed(page)))
    pages_.store->export_pages(pages_.ledger->sealed(page), index_, entry);
}

bool HeadState::import_page(int page, const std::byte* entry) {
  const PageEntry sealed = pages_.ledger->sealed(page);
  if (!has_pages(page, sealed)) return true;
  if (!pages_.store->hold(sealed, index_)) return false;
  pages_.store->import_pages(entry, index_, sealed);
  return true;
}

HeadState::Bytes HeadState::bytes() const {
  Bytes b;
  for_each_page([&](const HeldPage& page) {
    using Kind = HeldPage::Kind;
    (page.kind == Kind::sealed ? b.sealed
     : page.kind == Kind::tail ? b.tail
                               : b.protected_pages) += page.bytes;
  });
  b.tail += scores_.observer_bytes();
  b.lists = list_bytes(static_cast<int>(protected_tokens_.size()), static_cast<int>(masks_.size())) +
            scores_.bytes() + correction_.bytes() + checkpoint_.bytes();
  b.protected_tokens = static_cast<int>(protected_tokens_.size());
  b.masked_pages = static_cast<int>(masks_.size());
  b.sealed_tokens = (n_sealed_ - first_page()) * kPageTokens;
  b.tokens = length_ - first_page() * kPageTokens;
  return b;
}

}  // namespace kvant
