#include "cache/head_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/linear_correction.h"
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
      row_index_(pages.row_store->head_index(layer, kv_head)),
      rows_of_entry_(protected_page_rows(plan, layer)),
      tokens_index_(plan.geometry.head_index(layer, kv_head)),
      ahead_turn_(seal_ahead_turn(plan, layer, kv_head)) {}

bool HeadState::seals_ahead() const {
  const PageLedger& ledger = *pages_.ledger;
  return !ahead_ && ahead_turn_ > 0 && ledger.decodes_one() && ledger.end_sealed() == n_sealed_ &&
         ledger.end() % kPageTokens == ahead_turn_ && ledger.end() >= (n_sealed_ + 1) * kPageTokens;
}

bool HeadState::reserve() {
  const PageLedger& ledger = *pages_.ledger;
  const int pages_due = ledger.end_sealed() - n_sealed_;
  seals_ahead_ = seals_ahead();
  if (seals_ahead_ && !pages_.store->hold(ledger.ahead(), index_)) return false;
  if (pages_due == 0) return true;
  for (int page = n_sealed_; page < ledger.end_sealed(); ++page) {
    if (!pages_.store->hold(ledger.sealed(page), index_)) return false;
  }
  const std::vector<EntryHold>& rows = pages_.sequence->newest_rows();
  const std::size_t n_entries = entries_for(max_protected_tokens(layer_, ledger.end_sealed()));
  for (std::size_t i = n_entries == 0 ? 0 : chosen().tokens.size() / rows_of_entry_; i < n_entries; ++i) {
    if (!pages_.row_store->hold(rows[i].entry(), row_index_)) return false;
  }
  return true;
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

const ProtectedTokens::Head& HeadState::chosen() const {
  static const ProtectedTokens::Head kNone;
  const ProtectedTokens* tokens = pages_.sequence->newest_tokens();
  return tokens == nullptr ? kNone : tokens->heads[tokens_index_];
}

void HeadState::end_page(int end, int first_observer, std::span<const double> weights) {
  pages_.sequence->next_tokens()->heads[tokens_index_].scores.end_page(end, first_observer, weights);
}

const float* HeadState::correction() const {
  const SequencePages& sequence = *pages_.sequence;
  const auto& sums = sequence.next_sums() == nullptr ? sequence.sums() : sequence.next_sums();
  if (sums == nullptr) return nullptr;
  const std::vector<float>& of_head = static_cast<const HostSums&>(*sums).heads[tokens_index_];
  return of_head.empty() ? nullptr : of_head.data();
}

// Committed pages stay until the step is committed, because an abort needs them. Pages also stay while a fork
// shares them.
void HeadState::free_evicted_pages() {
  if (layer_.evict == 0) return;
  for (const PageMask& page : chosen().masks) {
    const PageEntry entry = pages_.ledger->sealed(page.page);
    if (is_gone(page.mask) && !pages_.store->shared(entry)) pages_.store->drop(entry, index_);
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
  const std::span<const float> adapter = head_.k.context.constants.find(kKeyAdapter);
  KVANT_CHECK(adapter.size() == feature_map_weights(d), "a feature map of a different head size");
  add_to_sums(adapter.data(), {errors.data(), kPageTokens, d}, {rounded.data(), kPageTokens, d}, mask,
              static_cast<HostSums&>(*pages_.sequence->next_sums()).heads[tokens_index_].data());
}

void HeadState::read_tail(Side side, int page, std::vector<float>& values) const {
  values.resize(static_cast<std::size_t>(kPageTokens) * dim());
  pages_.store->read(pages_.ledger->tail(page), index_, side, kPageTokens, values.data());
}

void HeadState::seal_ahead(std::vector<float>& scratch) {
  if (!seals_ahead_ || length_ < pages_.ledger->end()) return;
  seals_ahead_ = false;
  const TokenMask left_out = chosen().to_protect(layer_, n_sealed_);
  for (const Side side : kSides) {
    read_tail(side, n_sealed_, scratch);
    pages_.store->seal(pages_.ledger->ahead(), index_, side, n_sealed_, left_out, scratch.data());
  }
  ahead_ = true;
}

void HeadState::seal_until(int n_pages, std::vector<float>& scratch) {
  for (; n_sealed_ < n_pages; ++n_sealed_) {
    TokenMask protected_set, left_out;
    if (ProtectedTokens* tokens = pages_.sequence->next_tokens().get(); tokens != nullptr) {
      ProtectedTokens::Head& head = tokens->heads[tokens_index_];
      protected_set = head.seal(layer_, n_sealed_);
      left_out = layer_.evict > 0 ? head.masks.back().mask : protected_set;
    }
    const bool is_encoded = std::exchange(ahead_, false) || is_gone(left_out);
    for (const Side side : kSides) {
      if (is_encoded && protected_set.empty()) continue;
      read_tail(side, n_sealed_, scratch);
      if (!is_encoded)
        pages_.store->seal(pages_.ledger->sealed(n_sealed_), index_, side, n_sealed_, left_out,
                           scratch.data());
      write_rows(side, protected_set, scratch.data());
    }
    if (head_.corrected) correct(n_sealed_, protected_set);
  }
}

// Writes the rows of `tokens`, the tokens of one page that were chosen last. `values` has the page's values
// [kPageTokens, d].
void HeadState::write_rows(Side side, const TokenMask& tokens, const float* values) {
  auto row = static_cast<int>(chosen().tokens.size()) - tokens.count();
  for (int t = 0; t < kPageTokens; ++t) {
    if (!tokens.test(t)) continue;
    const PageEntry entry = pages_.sequence->newest_rows()[row / rows_of_entry_].entry();
    pages_.row_store->write_rows(entry, row_index_, side, row % rows_of_entry_, 1,
                                 values + std::ptrdiff_t{t} * dim());
    ++row;
  }
}

// Gives back the memory that the step has reserved and does not need. Forks may use a shared entry.
void HeadState::drop_unused() noexcept {
  const PageEntry ahead = pages_.ledger->ahead();
  if (ahead.held() && !ahead_) pages_.store->drop(ahead, index_);
  const std::vector<EntryHold>& rows = pages_.sequence->rows();
  for (std::size_t i = entries_for(chosen().tokens.size()); i < rows.size(); ++i) {
    const PageEntry entry = rows[i].entry();
    if (rows_of_entry_ > 0 && !pages_.row_store->shared(entry)) pages_.row_store->drop(entry, row_index_);
  }
}

void HeadState::commit() {
  KVANT_CHECK(length_ == pages_.ledger->length() && n_sealed_ == pages_.ledger->n_sealed(),
              "a layer was not run in the step");
  free_evicted_pages();
  drop_unused();
  committed_ahead_ = ahead_;
}

void HeadState::abort() {
  ahead_ = committed_ahead_;
  drop_unused();
  length_ = pages_.ledger->length();
  n_sealed_ = pages_.ledger->n_sealed();
}

void HeadState::list_pages(int first_visible, int n_sealed, int length, std::vector<PageView>& pages) const {
  pages.clear();
  const ProtectedTokens::Head& kept = chosen();
  pages_.sequence->list_head(
      layer(), kept.tokens, kept.masks, first_visible, n_sealed, length, [&](PageView view, PageEntry entry) {
        if (is_gone(view.masked)) return;
        const HostPageStore& store = view.is_protected ? *pages_.row_store : *pages_.store;
        const int index = view.is_protected ? row_index_ : index_;
        view.k = store.side(entry, index, Side::key);
        view.v = store.side(entry, index, Side::value);
        pages.push_back(view);
      });
}

void HeadState::truncate(int n_tokens) {
  const int page = n_tokens / kPageTokens;
  if (page <= n_sealed_) ahead_ = committed_ahead_ = false;
  length_ = n_tokens;
  n_sealed_ = std::min(n_sealed_, page);
}

void HeadState::copy_from(const HeadState& from) {
  length_ = from.length_;
  n_sealed_ = from.n_sealed_;
  ahead_ = committed_ahead_ = from.ahead_;
}

void HeadState::take_lengths() {
  length_ = pages_.ledger->length();
  n_sealed_ = pages_.ledger->n_sealed();
}

bool HeadState::hold_sealed(int first, int end) {
  for (int page = std::max(first, first_page()); page < std::min(end, n_sealed_); ++page) {
    const bool is_empty = layer_.evict > 0 && is_gone(chosen().masks[page].mask);
    if (!is_empty && !pages_.store->hold(pages_.ledger->sealed(page), index_)) return false;
  }
  return true;
}

}  // namespace kvant
