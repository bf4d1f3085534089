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

void release(PageId page, PagePool* pool) {
  if (page != kNoPage) pool->release(page);
}

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

StepDemand step_demand(const Plan& plan, int layer, int first, int n_sealed, int n, bool is_prompt) {
  const LayerPlan& rules = plan.layers[layer];
  StepDemand demand;
  int sealed = n_sealed;
  int recycled = 0;                              // step-local tail pages that can be used again
  const int committed_pages = pages_for(first);  // these stay untouched until commit
  const int n_open = (first + n) % kPageTokens;  // the page that is open at the end has a size of its own
  const auto seal = [&](int seal_point) {
    for (const int due = sealed_pages(seal_point, rules.window); sealed < due; ++sealed) {
      ++demand.sealed_pages;
      if (sealed >= committed_pages) ++recycled;
    }
  };
  seal(seal_point_before(first, is_prompt));
  for (const Tile& tile : schedule(first, n, {is_prompt, plan.recipe.prefill})) {
    int opened = pages_for(tile.append_end) - pages_for(tile.append_first);
    if (tile.append_end == first + n && n_open > 0 && opened > 0) --opened;
    for (; opened > 0; --opened) {
      if (recycled > 0) {
        --recycled;
      } else {
        ++demand.tail_pages;
      }
    }
    if (tile.seal_point >= 0) seal(tile.seal_point);
  }
  if (sealed > n_sealed) demand.protected_rows = max_protected_tokens(rules, sealed);
  demand.length = first + n;
  demand.one_token = n == 1 && !is_prompt;
  return demand;
}

HeadState::HeadState(const Plan& plan, int layer, int kv_head, const HeadPools& pools)
    : plan_(plan),
      layer_(plan.layers[layer]),
      head_(plan.head(layer, kv_head)),
      protected_rows_(protected_page_rows(plan, layer)),
      pools_(pools),
      ahead_turn_(seal_ahead_turn(plan, layer, kv_head)),
      tail_(*pools.tail) {
  for (int s = 0; s < 2; ++s) {
    protected_context_[s] = {
        head_.k.context.head_dim, side_plan(s).context.constants, {}, static_cast<int>(protected_rows_)};
  }
}

HeadState::~HeadState() {
  for (int s = 0; s < 2; ++s) {
    release_all(sealed_[s], pools_.sealed[s]);
    release_all(spare_sealed_[s], pools_.sealed[s]);
    release_all(ahead_[s], pools_.sealed[s]);
    release_all(protected_pages_[s], pools_.protected_pages);
    release_all(spare_protected_[s], pools_.protected_pages);
  }
}

void HeadState::release_all(PageList& list, PagePool* pool) {
  for (PageId page : list) release(page, pool);
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
  committed_ = {length_, n_sealed_, protected_tokens_.size(), masks_.size(), ahead_[0].size()};
  tail_.begin();
}

bool HeadState::reserve(const StepDemand& demand) {
  if (layer_.needs_scores()) {
    scores_.reserve(pages_for(demand.length) * kPageTokens, plan_.geometry.group(), plan_.geometry.head_dim);
  }
  seals_ahead_ = demand.one_token && demand.length % kPageTokens == ahead_turn_ && ahead_turn_ > 0 &&
                 demand.length > kPageTokens && ahead_[0].empty();
  for (int s = 0; s < 2 && seals_ahead_; ++s) {
    ahead_[s].reserve(1);
    if (!take_pages(spare_sealed_[s], pools_.sealed[s], 1)) return false;
  }
  if (!tail_.reserve(length_, demand.length, demand.tail_pages)) return false;
  if (demand.sealed_pages == 0 && pages_for(demand.length) == pages_for(length_) &&
      demand.length % kPageTokens != 0)
    return true;
  save_for_abort(demand);
  const std::size_t protected_rows = std::max<std::size_t>(protected_tokens_.size(), demand.protected_rows);
  const std::size_t new_protected = protected_pages(protected_rows) - protected_pages_[0].size();
  protected_tokens_.reserve(protected_rows);
  masks_.reserve(masks_.size() + (demand.protected_rows > 0 || layer_.evict > 0 ? demand.sealed_pages : 0));
  for (int s = 0; s < 2; ++s) {
    sealed_[s].reserve(sealed_[s].size() + demand.sealed_pages);
    protected_pages_[s].reserve(protected_pages_[s].size() + new_protected);
    if (!take_pages(spare_sealed_[s], pools_.sealed[s], demand.sealed_pages)) return false;
    if (!take_pages(spare_protected_[s], pools_.protected_pages, new_protected)) return false;
  }
  return true;
}

void HeadState::append(MatrixView<const float> k, MatrixView<const float> v) {
  for (int done = 0; done < k.rows;) {
    const int n = std::min(k.rows - done, kPageTokens - length_ % kPageTokens);
    tail_.append(length_, k.slice(done, n), v.slice(done, n));
    length_ += n;
    done += n;
  }
}

// A step that seals, or ends a page, changes masks, scores and correction in place.
void HeadState::save_for_abort(const StepDemand& demand) {
  if (!layer_.needs_scores() && layer_.evict == 0 && !head_.corrected) return;
  saved_.masks = masks_;
  saved_.scores = scores_;
  saved_.correction = correction_;
  saved_.valid = true;
  if (demand.sealed_pages > 0 && head_.corrected) correction_.reserve(plan_.geometry.head_dim);
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

// Committed pages stay until a step is committed: an abort wants them back.
void HeadState::free_evicted_pages() {
  if (layer_.evict == 0) return;
  for (const PageMask& page : masks_) {
    if (page.mask.count() < kPageTokens) continue;
    for (int s = 0; s < 2; ++s) release(std::exchange(sealed_[s][page.page], kNoPage), pools_.sealed[s]);
  }
}

// Adds the sealed page's rounding errors to the correction.
void HeadState::correct(int page, const TokenMask& mask) {
  const int d = plan_.geometry.head_dim;
  const std::size_t size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<float> errors(size), rounded(size);
  read_tail(0, page, errors);
  const auto decode = [&](int s) {
    side_plan(s).sealed->decode(pools_.sealed[s]->data(sealed_[s][page - first_sealed_]), kPageTokens,
                                side_plan(s).context, rounded.data());
  };
  decode(0);
  for (std::size_t i = 0; i < size; ++i) errors[i] -= rounded[i];
  decode(1);
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
                            pools_.protected_pages->data(protected_pages_[s][row / protected_rows_]));
    ++row;
  }
}

void HeadState::read_tail(int s, int page, std::vector<float>& values) const {
  values.resize(static_cast<std::size_t>(kPageTokens) * plan_.geometry.head_dim);
  const TailRows rows = tail_.rows(s, page);
  plan_.tail->decode(rows.bytes, kPageTokens, *rows.context, values.data());
}

void HeadState::encode_page(int s, const TokenMask& mask, const std::vector<float>& values, PageList& into) {
  const SidePlan& side = side_plan(s);
  KVANT_CHECK(!spare_sealed_[s].empty(), "seal beyond what the step reserved");
  const PageId sealed = spare_sealed_[s].back();
  spare_sealed_[s].pop_back();
  side.sealed->encode(values.data(), mask, side.context, pools_.sealed[s]->data(sealed));
  into.push_back(sealed);
}

void HeadState::seal_side(int s, int page, const TokenMask& mask, std::vector<float>& scratch) {
  read_tail(s, page, scratch);
  if (layer_.evict > 0 && mask.count() == kPageTokens) {
    sealed_[s].push_back(kNoPage);
  } else if (!ahead_[s].empty()) {
    sealed_[s].push_back(ahead_[s].back());
    ahead_[s].pop_back();
  } else {
    encode_page(s, mask, scratch, sealed_[s]);
  }
}

void HeadState::seal_ahead(std::vector<float>& scratch) {
  if (!seals_ahead_ || length_ < (n_sealed_ + 1) * kPageTokens) return;
  seals_ahead_ = false;
  const TokenMask left_out = protected_tokens(n_sealed_);
  for (int s = 0; s < 2; ++s) {
    read_tail(s, n_sealed_, scratch);
    encode_page(s, left_out, scratch, ahead_[s]);
  }
}

void HeadState::seal_until(int n_pages, std::vector<float>& scratch) {
  for (; n_sealed_ < n_pages; ++n_sealed_) {
    const TokenMask protected_set = protected_tokens(n_sealed_);
    const std::size_t first_row = protected_tokens_.size();
    if (!protected_set.empty() || layer_.evict > 0) masks_.push_back({n_sealed_, protected_set});
    if (layer_.evict > 0) evict(first_row + protected_set.count());
    const TokenMask left_out = layer_.evict > 0 ? masks_.back().mask : protected_set;
    for (int s = 0; s < 2; ++s) {
      seal_side(s, n_sealed_, left_out, scratch);
      protect_rows(s, n_sealed_, protected_set, scratch.data(), first_row);
    }
    if (!correction_.empty()) correct(n_sealed_, protected_set);
    tail_.recycle(n_sealed_);
  }
}

void HeadState::commit() {
  free_evicted_pages();
  for (int s = 0; s < 2; ++s) {
    release_all(spare_sealed_[s], pools_.sealed[s]);
    release_all(spare_protected_[s], pools_.protected_pages);
  }
  tail_.commit(n_sealed_);
  saved_ = {};
}

void HeadState::abort() {
  const auto cut = [&](PageList& list, PagePool* pool, std::size_t size) {
    for (std::size_t i = size; i < list.size(); ++i) release(list[i], pool);
    if (list.size() > size) list.resize(size);
  };
  for (int s = 0; s < 2; ++s) {
    cut(sealed_[s], pools_.sealed[s], committed_.n_sealed - first_sealed_);
    cut(ahead_[s], pools_.sealed[s], committed_.ahead);
    cut(protected_pages_[s], pools_.protected_pages, protected_pages(committed_.protected_rows));
    release_all(spare_sealed_[s], pools_.sealed[s]);
    release_all(spare_protected_[s], pools_.protected_pages);
  }
  tail_.abort();
  protected_tokens_.resize(committed_.protected_rows);
  masks_.resize(committed_.masks);
  length_ = committed_.length;
  n_sealed_ = committed_.n_sealed;
  if (saved_.valid) {
    masks_ = std::move(saved_.masks);
    scores_ = std::move(saved_.scores);
    correction_ = std::move(saved_.correction);
    saved_ = {};
  } else if (layer_.needs_scores()) {
    scores_.truncate(length_);
  }
}

void HeadState::list_pages(int first_visible, std::vector<PageView>& pages) const {
  pages.clear();
  const auto sealed = [&](int s, int i) {
    const SidePlan& side = side_plan(s);
    return PageSide{side.sealed, pools_.sealed[s]->data(sealed_[s][i]), &side.context};
  };
  const auto protected_set = [&](int s, PageId id) {
    return PageSide{plan_.tail, pools_.protected_pages->data(id), &protected_context_[s]};
  };
  const auto unsealed = [&](int s, int page) {
    const TailRows rows = tail_.rows(s, page);
    return PageSide{plan_.tail, rows.bytes, rows.context};
  };
  auto mask = masks_.begin();
  for (int page = std::max(first_sealed_, first_visible / kPageTokens); page < n_sealed_; ++page) {
    while (mask != masks_.end() && mask->page < page) ++mask;
    PageView view{.first_token = page * kPageTokens, .n_tokens = kPageTokens};
    if (mask != masks_.end() && mask->page == page) view.masked = mask->mask;
    if (sealed_[0][page - first_sealed_] == kNoPage) continue;
    view.k = sealed(0, page - first_sealed_);
    view.v = sealed(1, page - first_sealed_);
    pages.push_back(view);
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
    PageView view{.first_token = page * kPageTokens,
                  .n_tokens = std::min(kPageTokens, length_ - page * kPageTokens)};
    view.k = unsealed(0, page);
    view.v = unsealed(1, page);
    pages.push_back(view);
  }
}

void HeadState::free_before(int token) {
  const int first_needed = std::min(token / kPageTokens, n_sealed_);
  if (first_needed <= first_sealed_) return;
  for (int s = 0; s < 2; ++s) {
    for (int page = first_sealed_; page < first_needed; ++page) {
      pools_.sealed[s]->release(sealed_[s][page - first_sealed_]);
    }
    sealed_[s].erase(sealed_[s].begin(), sealed_[s].begin() + (first_needed - first_sealed_));
  }
  first_sealed_ = first_needed;
}

bool HeadState::unshare_last_protected(std::size_t rows_left) {
  if (protected_rows_ == 0 || rows_left % protected_rows_ == 0) return true;
  const std::size_t last = rows_left / protected_rows_;
  for (int s = 0; s < 2; ++s) {
    if (!pools_.protected_pages->shared(protected_pages_[s][last])) continue;
    PageList copy;
    if (!copy_page(pools_.protected_pages, protected_pages_[s][last], copy)) return false;
    pools_.protected_pages->release(protected_pages_[s][last]);
    protected_pages_[s][last] = copy[0];
  }
  return true;
}

// Decodes the first n_tokens of a sealed page back into the tail's page of that number; protected rows return
// exactly.
void HeadState::reopen(int s, int page, int n_tokens, std::size_t first_protected) const {
  const SidePlan& side = side_plan(s);
  const int d = plan_.geometry.head_dim;
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d);
  const TailRows rows = tail_.rows(s, page);
  side.sealed->decode(pools_.sealed[s]->data(sealed_[s][page - first_sealed_]), n_tokens, side.context,
                      values.data());
  plan_.tail->encode_rows(values.data(), 0, n_tokens, *rows.context, rows.bytes);
  for (std::size_t i = first_protected;
       i < protected_tokens_.size() && protected_tokens_[i] < page * kPageTokens + n_tokens; ++i) {
    const int row = static_cast<int>(i % protected_rows_);
    plan_.tail->decode(pools_.protected_pages->data(protected_pages_[s][i / protected_rows_]), row + 1,
                       protected_context_[s], values.data());
    plan_.tail->encode_rows(values.data() + static_cast<std::ptrdiff_t>(row) * d,
                            protected_tokens_[i] % kPageTokens, 1, *rows.context, rows.bytes);
  }
}

void HeadState::drop_sealed_from(int page, std::size_t protected_left) {
  first_sealed_ = std::min(first_sealed_, page);  // pages freed by a sliding window: the cut is at 0
  const auto n_sealed = static_cast<std::size_t>(page - first_sealed_);
  const std::size_t n_protected = protected_pages(protected_left);
  for (int s = 0; s < 2; ++s) {
    for (std::size_t i = n_sealed; i < sealed_[s].size(); ++i) release(sealed_[s][i], pools_.sealed[s]);
    for (std::size_t i = n_protected; i < protected_pages_[s].size(); ++i)
      pools_.protected_pages->release(protected_pages_[s][i]);
    sealed_[s].resize(n_sealed);
    protected_pages_[s].resize(n_protected);
    release_all(ahead_[s], pools_.sealed[s]);
  }
  protected_tokens_.resize(protected_left);
  std::erase_if(masks_, [&](const PageMask& m) { return m.page >= page; });
  n_sealed_ = page;
}

bool HeadState::truncate(int n_tokens) {
  const int page = n_tokens / kPageTokens;
  if (page >= n_sealed_) {
    if (!tail_.truncate(n_tokens)) return false;
    for (int s = 0; s < 2 && page == n_sealed_; ++s) release_all(ahead_[s], pools_.sealed[s]);
    length_ = n_tokens;
    scores_.truncate(n_tokens);
    return true;
  }
  const auto protected_left = static_cast<std::size_t>(
      std::lower_bound(protected_tokens_.begin(), protected_tokens_.end(), page * kPageTokens) -
      protected_tokens_.begin());
  const int n_open = n_tokens % kPageTokens;
  if (!unshare_last_protected(protected_left) || !tail_.restart(page, n_open)) return false;
  for (int s = 0; s < 2 && n_open > 0; ++s) reopen(s, page, n_open, protected_left);
  drop_sealed_from(page, protected_left);
  scores_.truncate(n_tokens);
  if (n_tokens == 0) checkpoint_ = {};
  correction_ = checkpoint_;
  length_ = n_tokens;
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
    sealed_[s] = from.sealed_[s];
    for (PageId page : sealed_[s]) {
      if (page != kNoPage) pools_.sealed[s]->retain(page);
    }
    ahead_[s] = from.ahead_[s];
    for (PageId page : ahead_[s]) pools_.sealed[s]->retain(page);
    for (std::size_t i = 0; i < from.protected_pages_[s].size(); ++i) {
      if (i >= full_protected) {
        if (!copy_page(pools_.protected_pages, from.protected_pages_[s][i], protected_pages_[s]))
          return false;
        continue;
      }
      protected_pages_[s].push_back(from.protected_pages_[s][i]);
      pools_.protected_pages->retain(from.protected_pages_[s][i]);
    }
  }
  if (!tail_.copy_from(from.tail_)) return false;
  protected_tokens_ = from.protected_tokens_;
  masks_ = from.masks_;
  scores_ = from.scores_;
  correction_ = from.correction_;
  checkpoint_ = from.checkpoint_;
  length_ = from.length_;
  n_sealed_ = from.n_sealed_;
  first_sealed_ = from.first_sealed_;
  return true;
}

HeadState::Bytes HeadState::bytes() const {
  Bytes b;
  for (int s = 0; s < 2; ++s) {
    const std::ptrdiff_t n_held = std::ssize(sealed_[s]) - std::ranges::count(sealed_[s], kNoPage);
    b.sealed += n_held * static_cast<std::int64_t>(pools_.sealed[s]->page_bytes());
    if (!protected_pages_[s].empty())
      b.protected_pages +=
          static_cast<std::int64_t>(protected_pages_[s].size() * pools_.protected_pages->page_bytes());
    b.tail += static_cast<std::int64_t>(ahead_[s].size() * pools_.sealed[s]->page_bytes());
  }
  b.tail += tail_.bytes() + scores_.observer_bytes();
  b.lists = list_bytes(static_cast<int>(protected_tokens_.size()), static_cast<int>(masks_.size())) +
            scores_.bytes() + correction_.bytes() + checkpoint_.bytes();
  b.protected_tokens = static_cast<int>(protected_tokens_.size());
  b.masked_pages = static_cast<int>(masks_.size());
  b.sealed_tokens = static_cast<int>(sealed_[0].size()) * kPageTokens;
  b.tokens = length_ - first_sealed_ * kPageTokens;
  return b;
}

}  // namespace kvant
