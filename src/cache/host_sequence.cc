#include "cache/host_sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cache/layer_groups.h"
#include "cache/synthetic_sequence.h"

namespace kvant {

HostStore::HostStore(const Plan& plan, std::int64_t byte_limit)
    : SequenceStore(plan, byte_limit, nullptr), pools_(mutable_budget()) {
  const Geometry& g = plan.geometry;
  for (const LayersOfEntry& found : layer_groups(plan)) {
    pages_.push_back(std::make_unique<HostPageStore>(plan, found.layers, pools_));
    add_group(found.rules, found.layers, *pages_.back());
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.kv_heads(layer); ++h) protected_stores_.push_back(protected_store(layer, h));
  }
}

ProtectedStore HostStore::protected_store(int layer, int kv_head) {
  ProtectedStore store;
  const int rows = protected_page_rows(plan_, layer), d = plan_.geometry.dim(layer);
  if (rows == 0) return store;
  store.format = plan_.tail;
  store.pool = pools_.of(plan_.tail->short_page_bytes(d, rows));
  store.rows_per_page = rows;
  for (const Side side : kSides) {
    const HeadConstants& constants = plan_.head(layer, kv_head).side(side).context.constants;
    store.contexts[static_cast<int>(side)] = {d, constants, {}, rows};
  }
  return store;
}

std::unique_ptr<SequencePages> HostStore::make_sequence() {
  return std::make_unique<HostSequence>(*this);
}

Status HostStore::save_state(ByteWriter& to, const float* state) {
  const auto n_bytes = static_cast<std::size_t>(plan_.geometry.recurrent_bytes());
  std::byte* at = to.skip(n_bytes);
  state == nullptr ? std::memset(at, 0, n_bytes) : std::memcpy(at, state, n_bytes);
  return {};
}

void HostStore::load_state(const std::byte* from, float* state) {
  std::memcpy(state, from, static_cast<std::size_t>(plan_.geometry.recurrent_bytes()));
}

HostSequence::HostSequence(HostStore& store) : SequencePages(store.groups()), store_(store) {
  const Geometry& g = geometry();
  heads_.reserve(static_cast<std::size_t>(g.n_all_kv_heads()));
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int group = store.group_of(layer);
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      const HeadPages pages{&store.pages(group), &ledger(group),
                            &store.protected_rows(g.head_index(layer, h))};
      heads_.emplace_back(store.plan(), layer, h, pages);
    }
  }
}

bool HostSequence::sums_up() const {
  return std::any_of(heads_.begin(), heads_.end(),
                     [](const HeadState& head) { return head.correction() != nullptr; });
}

// --- a step ---

void HostSequence::begin_beside() {
  for (HeadState& head : heads_) head.begin();
}

bool HostSequence::reserve_beside() {
  return std::all_of(heads_.begin(), heads_.end(), [&](HeadState& head) {
    PageLedger& ledger = mutable_ledger(store_.group_of(head.layer()));
    return (!head.seals_ahead() || ledger.hold_ahead()) && head.reserve();
  });
}

void HostSequence::commit_beside() {
  for (HeadState& head : heads_) head.commit();
}

void HostSequence::abort_beside() {
  for (HeadState& head : heads_) head.abort();
}

// --- between steps ---

bool HostSequence::copy_beside(const SequencePages& from) {
  const std::vector<HeadState>& others = dynamic_cast<const HostSequence&>(from).heads_;
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (!heads_[i].copy_from(others[i])) return false;
  }
  return true;
}

Status HostSequence::reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) {
  for_each_head(group, [&](int layer, int h) {
    head(layer, h).reopen(n_tokens / kPageTokens, n_tokens % kPageTokens, sealed, tail);
  });
  return {};
}

bool HostSequence::truncate_beside(int n_tokens, bool /*forgets*/) {
  return std::all_of(heads_.begin(), heads_.end(), [&](HeadState& head) { return head.truncate(n_tokens); });
}

void HostSequence::checkpoint_beside() {
  for (HeadState& head : heads_) head.checkpoint();
}

// --- bytes ---

void HostSequence::for_each_page(const Visit& visit) const {
  for (int i = 0; i < static_cast<int>(heads_.size()); ++i) {
    const bool protects = store_.plan().layers[heads_[i].layer()].protect > 0;
    heads_[i].for_each_page([&](HeldPage page) {
      page.name.owner = i;
      page.part = page.name.kind == HeldPage::Kind::sealed ? &CacheBytes::sealed
                  : page.name.kind == HeldPage::Kind::tail ? &CacheBytes::tail
                  : protects                               ? &CacheBytes::protected_tokens
                                                           : &CacheBytes::sink;
      visit(page);
    });
  }
}

// If scores protect tokens, the sink's rows lie in the pages of protected tokens.
void HostSequence::add_bytes_beside(CacheBytes& bytes) const {
  for (const HeadState& head : heads_) {
    const HeadState::Bytes held = head.bytes();
    const LayerPlan& layer = store_.plan().layers[head.layer()];
    if (layer.protect > 0 && held.protected_tokens > 0) {
      const std::int64_t of_sink =
          held.protected_pages * std::min(layer.sink, held.protected_tokens) / held.protected_tokens;
      bytes.sink += of_sink;
      bytes.protected_tokens -= of_sink;
    }
    bytes.protected_tokens += held.lists;
    bytes.tail += held.observers;
  }
}

void HostSequence::add_side_bytes(std::vector<std::int64_t>& k, std::vector<std::int64_t>& v) const {
  const Plan& plan = store_.plan();
  for (int layer = 0; layer < geometry().n_layers; ++layer) {
    for (int h = 0; h < geometry().kv_heads(layer); ++h) {
      const auto page_bytes = [&](Side side) {
        const Format& format = *plan.head(layer, h).side(side).sealed;
        return static_cast<std::int64_t>(format.page_bytes(geometry().dim(layer)));
      };
      const std::int64_t k_page = page_bytes(Side::key), v_page = page_bytes(Side::value);
      const int i = geometry().head_index(layer, h);
      head(layer, h).for_each_page([&](const HeldPage& page) {
        const bool encoded = page.name.kind != HeldPage::Kind::beside && page.name.room == kSealedRoom;
        k[i] += encoded ? k_page
                        : page.bytes / 2;  // Unsealed and protected tokens have one format for both sides.
        v[i] += encoded ? v_page : page.bytes / 2;
      });
    }
  }
}

std::vector<int> HostSequence::protected_tokens(int layer, int kv_head) const {
  const std::span<const int> tokens = head(layer, kv_head).protected_tokens();
  return {tokens.begin(), tokens.end()};
}

Result<ListedPages> HostSequence::list_pages(int layer, int kv_head, int first_visible) const {
  ListedPages list;
  head(layer, kv_head).list_pages(first_visible, list.pages);
  return list;
}

// --- images ---

Status HostSequence::save_heads(const SeeHead& see) const {
  for (int layer = 0; layer < geometry().n_layers; ++layer) {
    for (int h = 0; h < geometry().kv_heads(layer); ++h) see(layer, h, head(layer, h).image());
  }
  return {};
}

bool HostSequence::load_heads(ByteReader& from, int /*n_sealed*/, const NextHead& next) {
  for (int layer = 0; layer < geometry().n_layers; ++layer) {
    for (int h = 0; h < geometry().kv_heads(layer); ++h) {
      HeadImage image = next(layer, h);
      if (!from.ok()) return true;
      if (!head(layer, h).take(std::move(image))) return false;
    }
  }
  return true;
}

Status HostSequence::save_page(ByteWriter& to, int index, int page) const {
  const PageLedger& of_group = ledger(index);
  if (page < of_group.n_sealed()) {
    std::byte* entry = to.skip(group(index).layout.entry_bytes());
    for_each_head(index, [&](int layer, int h) { head(layer, h).export_page(page, entry); });
    return {};
  }
  const HostPageStore& store = store_.pages(index);
  const int n = rows_of(index, page);
  for (int h = 0; h < store.n_heads(); ++h) {
    for (const Side side : kSides)
      store.export_rows(of_group.tail(page), h, side, n,
                        to.skip(store_.plan().tail->short_page_bytes(store.head_dim(h), n)));
  }
  return {};
}

bool HostSequence::load_page(ByteReader& from, int index, int page) {
  const PageLedger& of_group = ledger(index);
  if (page < of_group.n_sealed()) {
    const std::byte* entry = from.skip(group(index).layout.entry_bytes());
    bool enough = true;
    if (entry == nullptr) return true;
    for_each_head(index,
                  [&](int layer, int h) { enough = enough && head(layer, h).import_page(page, entry); });
    return enough;
  }
  HostPageStore& store = store_.pages(index);
  const int n = rows_of(index, page);
  for (int h = 0; h < store.n_heads(); ++h) {
    for (const Side side : kSides) {
      const std::byte* rows = from.skip(store_.plan().tail->short_page_bytes(store.head_dim(h), n));
      if (rows != nullptr) store.import_rows(rows, n, h, side, of_group.tail(page));
    }
  }
  return true;
}

// --- heads by name ---

HeadState& head_of(const Step& step, int slice, int layer, int kv_head) {
  auto* pages = dynamic_cast<HostSequence*>(&step.pages(slice));
  KVANT_CHECK(pages != nullptr, "heads of a sequence that lies elsewhere");
  return pages->head(layer, kv_head);
}

const HeadState& head_of(const Cache& cache, SequenceId sequence, int layer, int kv_head) {
  const auto* pages = dynamic_cast<const HostSequence*>(&cache.pages(sequence));
  KVANT_CHECK(pages != nullptr, "heads of a sequence that lies elsewhere");
  return pages->head(layer, kv_head);
}

}  // namespace kvant
