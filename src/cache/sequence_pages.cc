#include "cache/sequence_pages.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "cache/device_layout.h"

namespace kvant {
namespace {

// Returns the context of a page of n_rows unquantized rows.
PageContext rows_context(const SidePlan& side, int n_rows) {
  return {side.context.head_dim, side.context.constants, {}, n_rows};
}

}  // namespace

SequencePages::SequencePages(const SequenceStore& store) : store_(store), tokens_(store.no_tokens()) {
  for (const PageGroup& group : store.groups())
    ledgers_.push_back(std::make_unique<PageLedger>(group.rules, *group.entries));
}

const PageGroup& SequencePages::group(int index) const {
  return store_.groups()[index];
}

const PageLedger& SequencePages::ledger_of(int layer) const {
  return ledger(store_.group_of(layer));
}

// Without a choice by scores, a device keeps no list of protected tokens. The protected tokens are then the
// sink.
std::vector<int> SequencePages::protected_tokens(int layer, int kv_head, int n_sealed) const {
  const Plan& plan = store_.plan();
  if (tokens_ == nullptr) {
    const bool seals = group(store_.group_of(layer)).rules.seals;
    std::vector<int> sink(seals && n_sealed > 0 ? plan.layers[layer].sink : 0);
    std::iota(sink.begin(), sink.end(), 0);
    return sink;
  }
  const ProtectedTokens::Head& head = newest_tokens()->heads[plan.geometry.head_index(layer, kv_head)];
  return {head.tokens.begin(), head.tokens.begin() + head.n_before(n_sealed * kPageTokens)};
}

// --- a step ---

void SequencePages::begin() {
  for (const auto& ledger : ledgers_) ledger->begin();
}

bool SequencePages::reserve(int n_tokens, bool is_prompt) {
  for (const auto& ledger : ledgers_) {
    if (!ledger->reserve(n_tokens, is_prompt)) return false;
  }
  const bool seals = std::any_of(ledgers_.begin(), ledgers_.end(), [](const auto& ledger) {
    return ledger->end_sealed() > ledger->n_sealed();
  });
  const bool ends_page = ledger(0).end() / kPageTokens > length() / kPageTokens;
  if (tokens_ != nullptr && (seals || ends_page)) reserve_tokens();
  if (seals && !reserve_rows()) return false;
  if (is_corrected(store_.plan())) {
    if (sums_ == nullptr) sums_ = make_sums();
    if (sums_ != nullptr && seals) next_sums_ = make_sums();
    if (sums_ == nullptr || (seals && next_sums_ == nullptr)) return false;
  }
  return reserve_observers() && on_reserve();
}

// A step that ends or seals pages changes a copy, in which it allocates nothing.
void SequencePages::reserve_tokens() {
  auto next = std::make_shared<ProtectedTokens>(*tokens_);
  for_each_head(store_.plan().geometry, [&](int layer, int /*kv_head*/, int index) {
    next->heads[index].reserve(store_.plan().layers[layer], ledger_of(layer));
  });
  next_tokens_ = std::move(next);
}

// A step writes only observers that no committed sequence uses.
bool SequencePages::reserve_observers() {
  const int end = ledger(0).end();
  if (!store_.observes() || open_observers(end) == 0) return true;
  const bool stays = end / kPageTokens == length() / kPageTokens;
  const int page_end = (end / kPageTokens + 1) * kPageTokens;
  const bool is_own = stays && observers_.rows.use_count() == 1;
  next_observers_.first = first_observer_of(page_end, length(), stays ? observers_.first : -1);
  next_observers_.rows = is_own ? observers_.rows : make_observers(stays ? observers_.rows.get() : nullptr);
  return next_observers_.rows != nullptr;
}

// Calls see(n, rows of an entry) for every head that may protect tokens. n is the number of its protected
// tokens.
template <class See>
void SequencePages::for_each_row_count(const See& see) const {
  const Plan& plan = store_.plan();
  for_each_head(plan.geometry, [&](int layer, int /*kv_head*/, int index) {
    const int rows = store_.protected_entries().rows_of_layer[layer];
    if (rows == 0) return;
    see(tokens_ == nullptr ? max_protected_tokens(plan.layers[layer], ledger_of(layer).n_sealed())
                           : static_cast<int>(tokens_->heads[index].tokens.size()),
        rows);
  });
}

int SequencePages::most_sealed() const {
  int most = 0;
  for (const auto& ledger : ledgers_) most = std::max(most, ledger->end_sealed());
  return most;
}

bool SequencePages::push_rows(std::vector<EntryHold>& to) const {
  PartStore& entries = *store_.protected_entries().entries;
  EntryHold hold(entries, entries.take(kProtectedRoom));
  if (!hold.entry().held()) return false;
  to.push_back(std::move(hold));
  return true;
}

// New rows follow the existing rows. A step writes only rows that no committed sequence uses, so a shared
// entry that gets new rows is copied.
bool SequencePages::reserve_rows() {
  const ProtectedEntries& kind = store_.protected_entries();
  const std::size_t n = most_protected_entries(store_.plan(), kind.rows_of_layer, most_sealed());
  std::size_t first_written = n;
  for_each_row_count([&](int n_rows, int rows) {
    first_written = std::min(first_written, static_cast<std::size_t>(n_rows / rows));
  });
  next_rows_.reserve(n);
  for (std::size_t i = 0; i < std::max(n, rows_.size()); ++i) {
    const bool is_there = i < rows_.size();
    if (is_there && (i < first_written || !kind.entries->shared(rows_[i].entry()))) {
      next_rows_.push_back(rows_[i].share());
      continue;
    }
    if (!push_rows(next_rows_)) return false;
    if (is_there && !kind.entries->copy(rows_[i].entry(), kPageTokens, next_rows_.back().entry()))
      return false;
  }
  return true;
}

void SequencePages::release_unused_rows() {
  int n_used = 0;
  for_each_row_count([&](int n_rows, int rows) { n_used = std::max(n_used, (n_rows + rows - 1) / rows); });
  if (n_used < std::ssize(rows_)) rows_.erase(rows_.begin() + n_used, rows_.end());
}

void SequencePages::commit() {
  for (const auto& ledger : ledgers_) ledger->commit();
  if (next_tokens_ != nullptr) tokens_ = std::exchange(next_tokens_, nullptr);
  if (!next_rows_.empty()) {
    rows_ = std::exchange(next_rows_, {});
    release_unused_rows();
  }
  if (next_sums_ != nullptr) sums_ = std::exchange(next_sums_, nullptr);
  observers_ = std::exchange(next_observers_, {});
  on_commit();
}

void SequencePages::abort() {
  next_tokens_.reset();
  next_sums_.reset();
  if (length() == 0) sums_.reset();
  next_rows_.clear();
  next_observers_ = {};
  on_abort();
  for (const auto& ledger : ledgers_) ledger->abort();
}

// --- between steps ---

void SequencePages::copy_from(const SequencePages& from) {
  for (int i = 0; i < n_groups(); ++i) ledgers_[i]->copy_from(from.ledger(i));
  tokens_ = from.tokens_;
  rows_.reserve(from.rows_.size());
  for (const EntryHold& rows : from.rows_) rows_.push_back(rows.share());
  sums_ = from.sums_;
  checkpoint_sums_ = from.checkpoint_sums_;
  checkpoint_pages_ = from.checkpoint_pages_;
  observers_ = from.observers_;
  on_copy(from);
}

Result<bool> SequencePages::truncate(int n_tokens) {
  const bool forgets = n_tokens / kPageTokens < n_sealed();
  const bool is_same_page = n_tokens / kPageTokens == length() / kPageTokens;
  for (int i = 0; i < n_groups(); ++i) {
    Result<bool> reopened = true;
    const auto write = [&](PageEntry sealed, PageEntry tail) {
      reopened = reopen(i, n_tokens, sealed, tail);
    };
    if (!ledgers_[i]->truncate(n_tokens, write)) return false;
    if (!reopened.ok() || !*reopened) return reopened;
  }
  if (tokens_ != nullptr && !is_same_page) truncate_tokens(n_tokens);
  release_unused_rows();
  if (n_tokens == 0) checkpoint_pages_ = -1;
  if (forgets && n_tokens == 0) checkpoint_sums_.reset();
  if (forgets) sums_ = checkpoint_sums_;
  if (!is_same_page || observers_.first >= n_tokens) observers_ = {};
  on_truncate(n_tokens);
  return true;
}

// Within the open page, there are neither scores nor sealed pages to forget.
void SequencePages::truncate_tokens(int n_tokens) {
  auto left = std::make_shared<ProtectedTokens>(*tokens_);
  for_each_head(store_.plan().geometry, [&](int layer, int /*kv_head*/, int index) {
    left->heads[index].truncate(n_tokens, ledger_of(layer).n_sealed());
  });
  tokens_ = std::move(left);
}

// Cuts into sealed pages are rare, so the host decodes the page, wherever pages lie.
Result<bool> SequencePages::reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) const {
  const Plan& plan = store_.plan();
  const int n_open = n_tokens % kPageTokens;
  PartStore& entries = *this->group(group).entries;
  const PartList pages = entry_parts(group, /*is_sealed=*/true, kPageTokens),
                 open = entry_parts(group, /*is_sealed=*/false, n_open);
  std::vector<std::byte> from(pages.bytes), to(open.bytes);
  KVANT_RETURN_IF_ERROR(entries.save(sealed, pages.parts, from.data()));
  std::vector<float> values;
  for (std::size_t i = 0; i < open.parts.size(); ++i) {
    const PagePart& page = pages.parts[i];
    const SidePlan& side = plan.head(page.layer, page.kv_head).side(page.side);
    const Format& canonical = *find_format(side.sealed->name());
    values.resize(static_cast<std::size_t>(n_open) * side.context.head_dim);
    canonical.decode(from.data() + page.place, n_open, side.context, values.data());
    plan.tail->encode_rows(values.data(), 0, n_open, rows_context(side, n_open),
                           to.data() + open.parts[i].place);
  }
  KVANT_RETURN_IF_ERROR(put_protected_rows(n_tokens - n_open, n_open, open, to.data()));
  return entries.load(to.data(), open.parts, tail);
}

Status SequencePages::put_protected_rows(int first, int n, const PartList& open, std::byte* image) const {
  const Plan& plan = store_.plan();
  std::vector<HeadImage> heads(plan.geometry.n_all_kv_heads());
  const auto tokens_of = [&](const PagePart& part) -> std::vector<int>& {
    return heads[plan.geometry.head_index(part.layer, part.kv_head)].chosen.tokens;
  };
  for (const PagePart& part : open.parts)
    tokens_of(part) = protected_tokens(part.layer, part.kv_head, first / kPageTokens + 1);
  const ProtectedEntries& kind = store_.protected_entries();
  std::vector<std::byte> from;
  std::vector<float> values;
  for (std::size_t entry = 0; entry < rows_.size(); ++entry) {
    const PartList kept = row_parts(entry, heads);
    const auto in_entry = [&](const PagePart& part) {
      return std::span(tokens_of(part)).subspan(entry * kind.rows_of_layer[part.layer], part.n_rows);
    };
    if (std::ranges::all_of(kept.parts, [&](const auto& part) { return in_entry(part).back() < first; }))
      continue;
    from.resize(kept.bytes);
    KVANT_RETURN_IF_ERROR(kind.entries->save(rows_[entry].entry(), kept.parts, from.data()));
    for (const PagePart& part : kept.parts) {
      const SidePlan& side = plan.head(part.layer, part.kv_head).side(part.side);
      const PagePart& to = *std::ranges::find_if(open.parts, [&](const PagePart& other) {
        return other.layer == part.layer && other.kv_head == part.kv_head && other.side == part.side;
      });
      const int d = side.context.head_dim;
      values.resize(static_cast<std::size_t>(part.n_rows) * d);
      plan.tail->decode(from.data() + part.place, part.n_rows, rows_context(side, part.n_rows),
                        values.data());
      for (int row = 0; row < part.n_rows; ++row) {
        const int at = in_entry(part)[row] - first;
        if (at >= 0 && at < n)
          plan.tail->encode_rows(values.data() + std::ptrdiff_t{row} * d, at, 1, rows_context(side, n),
                                 image + to.place);
      }
    }
  }
  return {};
}

bool SequencePages::take_pages(int group, int length, int n_sealed, int first_page) {
  const bool seals = this->group(group).rules.seals;
  return ledgers_[group]->take_all(length, seals ? n_sealed : first_page, first_page);
}

// --- images ---

SequencePages::PartList SequencePages::entry_parts(int group, bool is_sealed, int n_rows) const {
  const Plan& plan = store_.plan();
  PartList list;
  for (const int layer : this->group(group).layers) {
    const int d = plan.geometry.dim(layer);
    for (int h = 0; h < plan.geometry.kv_heads(layer); ++h) {
      for (const Side side : kSides) {
        const Format& sealed = *plan.head(layer, h).side(side).sealed;
        PagePart part{.layer = layer, .kv_head = h, .side = side, .n_rows = n_rows};
        part.bytes = is_sealed ? sealed.page_bytes(d) : plan.tail->short_page_bytes(d, n_rows);
        list.add(part);
      }
    }
  }
  return list;
}

SequencePages::PartList SequencePages::parts_of(int group, int page, bool evicted) const {
  const PageEntry entry = page_entry(group, page);
  const int n_rows = std::min(kPageTokens, length() - page * kPageTokens);
  PartList list = entry_parts(group, entry.room == kSealedRoom, n_rows);
  if (!evicted)
    std::erase_if(list.parts,
                  [&](const PagePart& part) { return is_evicted(part.layer, part.kv_head, page, entry); });
  return list;
}

SequencePages::PartList SequencePages::row_parts(std::size_t entry,
                                                 const std::vector<HeadImage>& images) const {
  const Plan& plan = store_.plan();
  PartList list;
  for_each_head(plan.geometry, [&](int layer, int kv_head, int index) {
    const int rows = store_.protected_entries().rows_of_layer[layer];
    const int n_left = static_cast<int>(images[index].chosen.tokens.size()) - static_cast<int>(entry) * rows;
    const int n = std::min(rows, n_left);
    for (const Side side : kSides) {
      if (n > 0)
        list.add({.layer = layer,
                  .kv_head = kv_head,
                  .side = side,
                  .n_rows = n,
                  .bytes = plan.tail->short_page_bytes(plan.geometry.dim(layer), n)});
    }
  });
  return list;
}

Status SequencePages::save_heads(const SeeHead& see) const {
  const Geometry& g = store_.plan().geometry;
  std::vector<HeadImage> images(g.n_all_kv_heads());
  for_each_head(g, [&](int layer, int kv_head, int index) {
    if (tokens_ != nullptr) {
      images[index].chosen = tokens_->heads[index];
    } else {
      images[index].chosen.tokens = protected_tokens(layer, kv_head);
      images[index].chosen.masks = masks_of(images[index].chosen.tokens);
    }
  });
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const PartList list = row_parts(i, images);
    std::vector<std::byte> bytes(list.bytes);
    KVANT_RETURN_IF_ERROR(
        store_.protected_entries().entries->save(rows_[i].entry(), list.parts, bytes.data()));
    for (const PagePart& part : list.parts) {
      const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(part.place);
      auto& rows = images[g.head_index(part.layer, part.kv_head)].rows[static_cast<int>(part.side)];
      rows.insert(rows.end(), from, from + static_cast<std::ptrdiff_t>(part.bytes));
    }
  }
  for_each_head(g, [&](int layer, int /*kv_head*/, int index) {
    if (store_.plan().layers[layer].needs_scores()) images[index].first_observer = observers_.first;
  });
  KVANT_RETURN_IF_ERROR(on_save(images));
  for_each_head(g, [&](int layer, int kv_head, int index) { see(layer, kv_head, images[index]); });
  return {};
}

// Returns whether an image with n_sealed sealed pages may have chosen these tokens.
bool SequencePages::may_protect(const ProtectedTokens::Head& wanted, int layer, int n_sealed) const {
  const LayerPlan& rules = store_.plan().layers[layer];
  if (rules.evict == 0 && wanted.masks != masks_of(wanted.tokens)) return false;
  if (tokens_ != nullptr) return true;
  const int sink = n_sealed > 0 ? rules.sink : 0;
  return (sink == 0 || !rows_.empty()) && wanted.tokens.size() == static_cast<std::size_t>(sink) &&
         (sink == 0 || wanted.tokens.back() == sink - 1);
}

bool SequencePages::load_rows(const std::vector<HeadImage>& images) {
  const Plan& plan = store_.plan();
  const ProtectedEntries& kind = store_.protected_entries();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const PartList list = row_parts(i, images);
    std::vector<std::byte> bytes(list.bytes);
    for (const PagePart& part : list.parts) {
      const HeadImage& head = images[plan.geometry.head_index(part.layer, part.kv_head)];
      const int first = static_cast<int>(i) * kind.rows_of_layer[part.layer];
      const std::size_t place = plan.tail->short_page_bytes(plan.geometry.dim(part.layer), first);
      std::copy_n(head.rows[static_cast<int>(part.side)].data() + place, part.bytes,
                  bytes.data() + part.place);
    }
    if (!kind.entries->load(bytes.data(), list.parts, rows_[i].entry())) return false;
  }
  return true;
}

bool SequencePages::load_heads(ByteReader& from, int n_sealed, const NextHead& next) {
  const std::vector<int>& rows_of_layer = store_.protected_entries().rows_of_layer;
  for (int n = most_protected_entries(store_.plan(), rows_of_layer, most_sealed()); n > 0; --n) {
    if (!push_rows(rows_)) return false;
  }
  std::vector<HeadImage> images;
  std::optional<int> first_observer;  // The observers of all heads are the same tokens.
  for_each_head(store_.plan().geometry, [&](int layer, int kv_head, int /*index*/) {
    if (!from.ok()) return;
    const HeadImage& head = images.emplace_back(next(layer, kv_head));
    if (!from.ok()) return;  // The tokens of a damaged image may have any value.
    from.require(may_protect(head.chosen, layer, n_sealed));
    if (!store_.plan().layers[layer].needs_scores()) return;
    if (!first_observer.has_value()) first_observer = head.first_observer;
    from.require(head.first_observer == *first_observer);
  });
  if (!from.ok()) return true;
  if (first_observer.value_or(-1) >= 0) {
    observers_ = {make_observers(nullptr), *first_observer};
    if (observers_.rows == nullptr) return false;
  }
  if (!load_rows(images)) return false;
  if (tokens_ != nullptr) {
    auto loaded = std::make_shared<ProtectedTokens>();
    for (HeadImage& image : images) loaded->heads.push_back(std::move(image.chosen));
    tokens_ = std::move(loaded);
  }
  release_unused_rows();
  return on_load(images);
}

Status SequencePages::save_page(ByteWriter& to, int group, int page) const {
  const PartList list = parts_of(group, page, /*evicted=*/false);
  return this->group(group).entries->save(page_entry(group, page), list.parts, to.skip(list.bytes));
}

bool SequencePages::load_page(ByteReader& from, int group, int page) {
  const PartList list = parts_of(group, page, /*evicted=*/false);
  const std::byte* image = from.skip(list.bytes);
  return image == nullptr || this->group(group).entries->load(image, list.parts, page_entry(group, page));
}

// --- bytes ---

CacheBytes SequencePages::bytes() const {
  CacheBytes total;
  for (int i = 0; i < n_groups(); ++i) {
    const PageLedger& ledger = *ledgers_[i];
    const std::int64_t of_token = group(i).token_values;
    total.sealed_elements += of_token * (ledger.n_sealed() - ledger.first_page()) * kPageTokens;
    total.elements += of_token * (ledger.length() - ledger.first_page() * kPageTokens);
  }
  for_each_page([&](const HeldPage& page) { total.*page.part += page.bytes; });
  const std::int64_t of_sink = sink_in_protected_rows();
  total.sink += of_sink;
  total.protected_tokens -= of_sink;
  return total;
}

// Forks may hold a page of which this sequence has evicted all tokens of a head.
bool SequencePages::is_evicted(int layer, int kv_head, int page, PageEntry entry) const {
  const Plan& plan = store_.plan();
  return plan.layers[layer].evict > 0 && entry.room == kSealedRoom && page < ledger_of(layer).n_sealed() &&
         tokens_->heads[plan.geometry.head_index(layer, kv_head)].mask(page).count() == kPageTokens;
}

std::int64_t SequencePages::evicted_bytes(int group, int page, PageEntry entry) const {
  std::int64_t bytes = 0;
  if (store_.plan().recipe.evict == 0) return bytes;
  for (const PagePart& part : parts_of(group, page, /*evicted=*/true).parts) {
    if (is_evicted(part.layer, part.kv_head, page, entry))
      bytes += this->group(group).entries->side_bytes(entry, part.layer, part.kv_head, part.side);
  }
  return bytes;
}

void SequencePages::for_each_page(const Visit& visit) const {
  constexpr int kAllGroups = -1;
  using Kind = HeldPage::Kind;
  const auto see = [&](const PartStore& entries, PageEntry entry, HeldPage page) {
    page.name.room = entry.room;
    page.name.id = entry.id;
    page.shared = entries.shared(entry);
    page.bytes += entries.bytes_of(entry);
    if (page.bytes > 0) visit(page);  // Heads hold nothing of pages whose tokens are all evicted.
  };
  for (int i = 0; i < n_groups(); ++i) {
    ledger(i).for_each_entry([&](int page, PageEntry entry) {
      const bool sealed = entry.room == kSealedRoom && page < ledger(i).n_sealed();
      see(*group(i).entries, entry,
          {.name = {i, sealed ? Kind::sealed : Kind::tail},
           .page = page,
           .bytes = -evicted_bytes(i, page, entry),
           .part = sealed ? &CacheBytes::sealed : &CacheBytes::tail});
    });
  }
  const bool by_score = protects_by_score(store_.plan());
  for (const EntryHold& held : rows_) {
    see(*store_.protected_entries().entries, held.entry(),
        {.name = {kAllGroups, Kind::auxiliary},
         .part = by_score ? &CacheBytes::protected_tokens : &CacheBytes::sink});
  }
  const auto see_object = [&](const auto& object, std::int64_t bytes,
                              std::int64_t CacheBytes::*part = &CacheBytes::protected_tokens) {
    visit({.name = {.owner = kAllGroups, .kind = Kind::auxiliary, .object = object.get()},
           .shared = object.use_count() > 1,
           .bytes = bytes,
           .part = part});
  };
  for_each_sums([&](const auto& held) { see_object(held, sums_bytes(*held)); });
  std::int64_t of_tokens = 0;
  if (tokens_ != nullptr) {
    for (const ProtectedTokens::Head& head : tokens_->heads) of_tokens += head.bytes();
    see_object(tokens_, of_tokens);
  }
  if (observers_.rows != nullptr) see_object(observers_.rows, observer_bytes(), &CacheBytes::tail);
}

// If scores protect tokens, the sink's rows lie among the rows of protected tokens.
std::int64_t SequencePages::sink_in_protected_rows() const {
  const Plan& plan = store_.plan();
  std::int64_t bytes = 0;
  for_each_head(plan.geometry, [&](int layer, int kv_head, int index) {
    if (tokens_ == nullptr || !protects_by_score(plan, layer)) return;
    const auto n = static_cast<int>(tokens_->heads[index].tokens.size());
    std::int64_t of_head = 0;
    for (const EntryHold& held : rows_) {
      for (const Side side : kSides)
        of_head += store_.protected_entries().entries->side_bytes(held.entry(), layer, kv_head, side);
    }
    if (n > 0) bytes += of_head * std::min(plan.layers[layer].sink, n) / n;
  });
  return bytes;
}

void SequencePages::add_side_bytes(std::vector<std::int64_t>& k, std::vector<std::int64_t>& v) const {
  const Geometry& g = store_.plan().geometry;
  const auto add = [&](const PartStore& entries, int page, PageEntry entry, int layer) {
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      if (is_evicted(layer, h, page, entry)) continue;
      k[g.head_index(layer, h)] += entries.side_bytes(entry, layer, h, Side::key);
      v[g.head_index(layer, h)] += entries.side_bytes(entry, layer, h, Side::value);
    }
  };
  for (int i = 0; i < n_groups(); ++i) {
    ledger(i).for_each_entry([&](int page, PageEntry entry) {
      for (const int layer : group(i).layers) add(*group(i).entries, page, entry, layer);
    });
  }
  const ProtectedEntries& rows = store_.protected_entries();
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (const EntryHold& held : rows_) {
      if (rows.rows_of_layer[layer] > 0) add(*rows.entries, /*page=*/-1, held.entry(), layer);
    }
  }
}

// A sequence that has evicted tokens of a page counts fewer bytes of the page than others.
void SequencePages::leave_out_shared(std::map<HeldPage::Name, std::int64_t>& counted,
                                     CacheBytes& bytes) const {
  for_each_page([&](const HeldPage& page) {
    if (!page.shared) return;
    std::int64_t& of_page = counted[page.name];
    bytes.*page.part -= std::min(of_page, page.bytes);
    of_page = std::max(of_page, page.bytes);
  });
}

// --- the store ---

SequenceStore::SequenceStore(const Plan& plan, std::int64_t byte_limit, PageDevice* keeps_states,
                             bool keeps_tokens)
    : plan_(plan),
      no_tokens_(keeps_tokens ? ProtectedTokens::none(plan.geometry) : nullptr),
      budget_(byte_limit),
      states_(plan.geometry.recurrent_values, budget_, keeps_states),
      group_of_layer_(plan.geometry.n_layers) {}

bool SequenceStore::observes() const {
  return no_tokens_ != nullptr && std::ranges::any_of(plan_.layers, &LayerPlan::needs_scores);
}

void SequenceStore::add_group(const GroupRules& rules, const std::vector<int>& layers, PartStore& entries) {
  PageGroup group{rules, layers, PageLayout(plan_, layers), &entries};
  for (const int layer : group.layers) {
    group_of_layer_[layer] = static_cast<int>(groups_.size());
    group.token_values += std::int64_t{2} * plan_.geometry.n_kv(layer);
  }
  groups_.push_back(std::move(group));
}

std::shared_ptr<float> SequenceStore::take_state() {
  std::shared_ptr<float> state = states_.take();
  if (state == nullptr && shrink()) state = states_.take();
  return state;
}

}  // namespace kvant
