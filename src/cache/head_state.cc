#include "cache/head_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/page_counts.h"
#include "recipe/constant_needs.h"

namespace kvant {

int seal_ahead_turn(const Plan& plan, int layer, int kv_head) {
  const LayerPlan& rules = plan.layers[layer];
  if (rules.window < kPageTokens || rules.needs_scores() || rules.evict > 0) return 0;
  const Geometry& g = plan.geometry;
  return 2 + g.head_index(layer, kv_head) * (kPageTokens - 2) / g.n_all_kv_heads();
}

HeadState::HeadState(const Plan& plan, int layer, int kv_head, const HeadPages& pages)
    : plan_(plan),
      layer_(plan.layers[layer]),
      head_(plan.head(layer, kv_head)),
      pages_(pages),
      index_(pages.store->head_index(layer, kv_head)),
      ahead_turn_(seal_ahead_turn(plan, layer, kv_head)),
      protected_(*pages.protected_rows) {
  if (layer_.needs_scores() || layer_.evict > 0 || head_.corrected) attended_ = std::make_unique<Attended>();
}

void HeadState::begin() {
  committed_ = {masks_.size(), ahead_};
  protected_.begin();
}

bool HeadState::seals_ahead() const {
  const PageLedger& ledger = *pages_.ledger;
  return !ahead_ && ahead_turn_ > 0 && ledger.decodes_one() && ledger.end_sealed() == n_sealed_ &&
         ledger.end() % kPageTokens == ahead_turn_ && ledger.end() >= (n_sealed_ + 1) * kPageTokens;
}

bool HeadState::reserve() {
  const PageLedger& ledger = *pages_.ledger;
  const int end = ledger.end(), pages_due = ledger.end_sealed() - n_sealed_;
  const Geometry& g = plan_.geometry;
  if (layer_.needs_scores()) attended_->scores.reserve(pages_for(end) * kPageTokens, g.group(layer()), dim());
  seals_ahead_ = seals_ahead();
  if (seals_ahead_ && !pages_.store->hold(ledger.ahead(), index_)) return false;
  if (pages_due == 0 && pages_for(end) == pages_for(length_) && end % kPageTokens != 0) return true;
  save_for_abort(pages_due);
  if (pages_due == 0) return true;
  for (int page = n_sealed_; page < ledger.end_sealed(); ++page) {
    if (!pages_.store->hold(ledger.sealed(page), index_)) return false;
  }
  const int n_protected = max_protected_tokens(layer_, ledger.end_sealed());
  if (layer_.evict > 0 || n_protected > 0) masks_.reserve(masks_.size() + pages_due);
  return protected_.reserve(n_protected);
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

// A step that seals or ends a page changes masks, scores and the correction in place, so abort() needs
// copies.
void HeadState::save_for_abort(int pages_due) {
  if (attended_ == nullptr) return;
  saved_ = std::make_unique<Saved>(Saved{masks_, attended_->scores, attended_->correction});
  if (pages_due > 0 && head_.corrected) attended_->correction.reserve(dim());
}

TokenMask HeadState::to_protect(int page) const {
  return tokens_to_protect(layer_, scores(), page, protected_.size());
}

// Masks tokens of sealed pages, including the page that is being sealed, until the recipe's share is evicted.
// The least attended token goes first, and among equal tokens the oldest. n_protected counts the protected
// tokens of all these pages.
void HeadState::evict(std::size_t n_protected) {
  std::vector<std::pair<float, int>> left;  // score, token
  for (const PageMask& page : masks_) {
    for (int t = 0; t < kPageTokens; ++t) {
      const int token = page.page * kPageTokens + t;
      if (!page.mask.test(t)) left.emplace_back(attended_->scores.score(token), token);
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

// Committed pages stay until the step is committed, because an abort needs them. Pages also stay while a fork
// shares them.
void HeadState::free_evicted_pages() {
  if (layer_.evict == 0) return;
  for (const PageMask& page : masks_) {
    const PageEntry entry = pages_.ledger->sealed(page.page);
    if (is_gone(page) && !pages_.store->shared(entry)) pages_.store->drop(entry, index_);
  }
}

// Adds the sealed page's rounding errors to the correction.
void HeadState::correct(int page, const TokenMask& mask) {
  const int d = dim();
  const std::size_t size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<float> errors(size), rounded(size);
  read_tail(Side::key, page, errors);
  const PageEntry entry = pages_.ledger->sealed(page);
  pages_.store->read(entry, index_, Side::key, kPageTokens, rounded.data());
  for (std::size_t i = 0; i < size; ++i) errors[i] -= rounded[i];
  pages_.store->read(entry, index_, Side::value, kPageTokens, rounded.data());
  attended_->correction.add(head_.k.context.constants.find(kKeyAdapter), {errors.data(), kPageTokens, d},
                            {rounded.data(), kPageTokens, d}, mask);
}

void HeadState::read_tail(Side side, int page, std::vector<float>& values) const {
  values.resize(static_cast<std::size_t>(kPageTokens) * dim());
  pages_.store->read(pages_.ledger->tail(page), index_, side, kPageTokens, values.data());
}

void HeadState::seal_ahead(std::vector<float>& scratch) {
  if (!seals_ahead_ || length_ < pages_.ledger->end()) return;
  seals_ahead_ = false;
  const TokenMask left_out = to_protect(n_sealed_);
  for (const Side side : kSides) {
    read_tail(side, n_sealed_, scratch);
    pages_.store->seal(pages_.ledger->ahead(), index_, side, n_sealed_, left_out, scratch.data());
  }
  ahead_ = true;
}

void HeadState::seal_until(int n_pages, std::vector<float>& scratch) {
  for (; n_sealed_ < n_pages; ++n_sealed_) {
    const TokenMask protected_set = to_protect(n_sealed_);
    protected_.add(n_sealed_, protected_set);
    if (!protected_set.empty() || layer_.evict > 0) masks_.push_back({n_sealed_, protected_set});
    if (layer_.evict > 0) evict(protected_.size());
    const TokenMask left_out = layer_.evict > 0 ? masks_.back().mask : protected_set;
    const bool is_encoded = std::exchange(ahead_, false) || (layer_.evict > 0 && is_gone(masks_.back()));
    for (const Side side : kSides) {
      if (is_encoded && protected_set.empty()) continue;
      read_tail(side, n_sealed_, scratch);
      if (!is_encoded)
        pages_.store->seal(pages_.ledger->sealed(n_sealed_), index_, side, n_sealed_, left_out,
                           scratch.data());
      protected_.write(side, protected_set, scratch.data());
    }
    if (correction() != nullptr) correct(n_sealed_, protected_set);
  }
}

void HeadState::commit() {
  KVANT_CHECK(length_ == pages_.ledger->length() && n_sealed_ == pages_.ledger->n_sealed(),
              "a layer was not run in the step");
  free_evicted_pages();
  const PageEntry ahead = pages_.ledger->ahead();
  if (ahead.held() && !ahead_) pages_.store->drop(ahead, index_);
  protected_.commit();
  saved_.reset();
}

void HeadState::abort() {
  ahead_ = committed_.ahead;
  const PageEntry ahead = pages_.ledger->ahead();
  if (ahead.held() && !ahead_) pages_.store->drop(ahead, index_);
  protected_.abort();
  masks_.resize(committed_.masks);
  length_ = pages_.ledger->length();
  n_sealed_ = pages_.ledger->n_sealed();
  if (saved_ != nullptr) {
    masks_ = std::move(saved_->masks);
    attended_->scores = std::move(saved_->scores);
    attended_->correction = std::move(saved_->correction);
    saved_.reset();
  } else if (layer_.needs_scores()) {
    attended_->scores.truncate(length_);
  }
}

bool HeadState::has_pages(int page, PageEntry entry) const {
  if (entry.room != kSealedRoom) return true;
  if (page == n_sealed_) return ahead_;
  return layer_.evict == 0 || !is_gone(masks_[page]);
}

void HeadState::list_pages(int first_visible, int n_sealed, int length, std::vector<PageView>& pages) const {
  pages.clear();
  const PageLedger& ledger = *pages_.ledger;
  const auto add = [&](PageView view, PageEntry entry) {
    view.k = pages_.store->side(entry, index_, Side::key);
    view.v = pages_.store->side(entry, index_, Side::value);
    pages.push_back(view);
  };
  auto mask = masks_.begin();
  for (int page = std::max(first_page(), first_visible / kPageTokens); page < n_sealed; ++page) {
    while (mask != masks_.end() && mask->page < page) ++mask;
    PageView view{.first_token = page * kPageTokens, .n_tokens = kPageTokens};
    if (mask != masks_.end() && mask->page == page) {
      if (is_gone(*mask)) continue;
      view.masked = mask->mask;
    }
    add(view, ledger.sealed(page));
  }
  if (n_sealed > 0) protected_.list(pages);
  for (int page = std::max(n_sealed, first_visible / kPageTokens); page * kPageTokens < length; ++page) {
    add({.first_token = page * kPageTokens, .n_tokens = std::min(kPageTokens, length - page * kPageTokens)},
        ledger.tail(page));
  }
}

void HeadState::reopen(int page, int n_tokens, PageEntry sealed, PageEntry tail) const {
  const int first = page * kPageTokens;
  std::vector<float> values(static_cast<std::size_t>(n_tokens) * dim());
  for (const Side side : kSides) {
    pages_.store->read(sealed, index_, side, n_tokens, values.data());
    pages_.store->write_rows(tail, index_, side, 0, n_tokens, values.data());
    protected_.read(side, first, first + n_tokens, [&](int token, const float* row) {
      pages_.store->write_rows(tail, index_, side, token - first, 1, row);
    });
  }
}

bool HeadState::truncate(int n_tokens) {
  const int page = n_tokens / kPageTokens;
  if (page <= n_sealed_) ahead_ = false;
  length_ = n_tokens;
  if (attended_ != nullptr) attended_->scores.truncate(n_tokens);
  if (page >= n_sealed_) return true;
  n_sealed_ = page;
  std::erase_if(masks_, [&](const PageMask& m) { return m.page >= page; });
  if (attended_ != nullptr) {
    if (n_tokens == 0) attended_->checkpoint = {};
    attended_->correction = attended_->checkpoint;
  }
  return protected_.truncate(page * kPageTokens);
}

bool HeadState::copy_from(const HeadState& from) {
  if (!protected_.copy_from(from.protected_)) return false;
  masks_ = from.masks_;
  if (attended_ != nullptr) *attended_ = *from.attended_;
  length_ = from.length_;
  n_sealed_ = from.n_sealed_;
  ahead_ = from.ahead_;
  return true;
}

HeadImage HeadState::image() const {
  const std::span<const int> tokens = protected_.tokens();
  HeadImage image{.tokens = {tokens.begin(), tokens.end()},
                  .rows = {protected_.image(Side::key), protected_.image(Side::value)},
                  .masks = masks_};
  if (attended_ == nullptr) return image;
  image.scores = attended_->scores;
  const std::span<const float> sums = attended_->correction.sums(), before = attended_->checkpoint.sums();
  image.sums.assign(sums.begin(), sums.end());
  image.checkpoint_sums.assign(before.begin(), before.end());
  return image;
}

bool HeadState::take(HeadImage image) {
  length_ = pages_.ledger->length();
  n_sealed_ = pages_.ledger->n_sealed();
  masks_ = std::move(image.masks);
  if (attended_ != nullptr) {
    attended_->scores = std::move(image.scores);
    attended_->correction.take(std::move(image.sums), dim());
    attended_->checkpoint.take(std::move(image.checkpoint_sums), dim());
  }
  return protected_.take(std::move(image.tokens), image.rows);
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
    if (page.name.kind == HeldPage::Kind::tail) b.tail += page.bytes;
    if (page.name.kind == HeldPage::Kind::beside) b.protected_pages += page.bytes;
  });
  b.lists = list_bytes(protected_.size(), static_cast<int>(masks_.size()));
  if (attended_ != nullptr) {
    b.observers = attended_->scores.observer_bytes();
    b.lists += attended_->scores.bytes() + attended_->correction.bytes() + attended_->checkpoint.bytes();
  }
  b.protected_tokens = protected_.size();
  b.masked_pages = static_cast<int>(masks_.size());
  return b;
}

}  // namespace kvant
