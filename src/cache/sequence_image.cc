// All numbers are little-endian, integers are of 32 bits:
//   magic, version, layers, KV heads, head size, length, pages summed up by the checkpoint
//   for each layer group: sealed pages, freed pages
//   for each (layer, KV head): what lies beside the entries (HeadState::save)
//   for each layer group: its sealed entries in canonical order (PageLayout), oldest first; pages of which
//   all is evicted are zero. Then the unsealed pages: of each head K's rows, then V's.
#include "cache/sequence_image.h"

#include <limits>
#include <new>

namespace kvant {
namespace {

constexpr std::uint32_t kMagic = 0x7173766b;  // "kvsq"
constexpr int kVersion = 1;
constexpr int kMaxTokens = 1 << 30;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

std::array<std::int32_t, 5> shape_of(const Geometry& g) {
  return {static_cast<std::int32_t>(kMagic), kVersion, g.n_layers, g.n_kv_heads, g.head_dim};
}

int rows_of(const PageLedger& ledger, int page) {
  return std::min(kPageTokens, ledger.length() - page * kPageTokens);
}

}  // namespace

// --- export ---

Result<SequenceExport> SequenceExport::start(const Cache& cache, SequenceId sequence) {
  KVANT_RETURN_IF_ERROR(cache.check_idle(sequence, "export"));
  if (cache.on_device()) return cache.not_on_a_device("save");
  SequenceExport made(cache, sequence);
  try {
    made.write_head();
  } catch (const std::bad_alloc&) {
    return cache.out_of_memory("exporting a sequence");
  }
  return made;
}

void SequenceExport::write_head() {
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  to_.write(shape_of(cache_->plan().geometry));
  to_.write<std::int32_t>(s.length());
  to_.write<std::int32_t>(s.checkpoint_pages);
  std::size_t n_bytes = 0;
  for (std::size_t i = 0; i < s.ledgers.size(); ++i) {
    const PageLedger& ledger = *s.ledgers[i];
    to_.write<std::int32_t>(ledger.n_sealed());
    to_.write<std::int32_t>(ledger.first_page());
    n_bytes += static_cast<std::size_t>(ledger.n_sealed() - ledger.first_page()) *
               cache_->groups_[i].store->layout().entry_bytes();
  }
  for (const HeadState& head : s.heads) head.save(to_);
  to_.reserve(n_bytes);
  page_ = s.ledgers[0]->first_page();
}

void SequenceExport::write_page(std::size_t group, int page) {
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  const PageLedger& ledger = *s.ledgers[group];
  const HostPageStore& store = *cache_->groups_[group].store;
  if (page < ledger.n_sealed()) {
    std::byte* entry = to_.skip(store.layout().entry_bytes());
    return cache_->for_each_head(s, cache_->groups_[group],
                                 [&](const HeadState& head) { head.export_page(page, entry); });
  }
  const int n = rows_of(ledger, page);
  for (int head = 0; head < store.n_heads(); ++head) {
    for (const Side side : kSides)
      store.export_rows(ledger.tail(page), head, side, n,
                        to_.skip(cache_->plan().tail->short_page_bytes(cache_->plan().geometry.head_dim, n)));
  }
}

Result<bool> SequenceExport::advance(std::size_t n_bytes) {
  KVANT_RETURN_IF_ERROR(cache_->check_idle(sequence_, "export"));
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  const std::size_t start = to_.size();
  try {
    for (; group_ < s.ledgers.size();
         ++group_, page_ = group_ < s.ledgers.size() ? s.ledgers[group_]->first_page() : 0) {
      for (; page_ < pages_for(s.ledgers[group_]->length()); ++page_) {
        if (to_.size() - start >= n_bytes) return false;
        write_page(group_, page_);
      }
    }
  } catch (const std::bad_alloc&) {
    return cache_->out_of_memory("exporting a sequence");
  }
  return true;
}

Result<std::vector<std::byte>> Cache::export_sequence(SequenceId sequence) const {
  auto whole = SequenceExport::start(*this, sequence);
  if (!whole.ok()) return whole.error();
  if (const auto done = whole->advance(kAll); !done.ok()) return done.error();
  return whole->take();
}

// --- import ---

SequenceImport::SequenceImport(Cache& cache, std::span<const std::byte> bytes)
    : cache_(&cache), n_bytes_(bytes.size()), from_(bytes) {}

// False where memory is exhausted.
bool SequenceImport::read_head() {
  const Plan& plan = cache_->plan();
  sequence_ = cache_->empty_sequence();
  const auto shape = from_.read<std::array<std::int32_t, 5>>();
  from_.require(shape == shape_of(plan.geometry));
  const int length = from_.read_int(0, kMaxTokens);
  sequence_.checkpoint_pages = from_.read_int(-1, length / kPageTokens);
  for (std::size_t i = 0; i < cache_->groups_.size() && from_.ok(); ++i) {
    const Cache::LayerGroup& group = cache_->groups_[i];
    const int sealed = from_.read_int(0, length / kPageTokens);
    const int freed = from_.read_int(0, freed_pages(length, group.rules.sliding_window, sealed));
    // What it is to hold has to be there, before memory is taken for it.
    from_.require(from_.n_left() / group.store->layout().entry_bytes() >=
                  static_cast<std::size_t>(sealed - freed));
    from_.require(from_.n_left() / plan.tail->short_page_bytes(plan.geometry.head_dim, 1) >=
                  static_cast<std::size_t>(length - sealed * kPageTokens));
    if (from_.ok() && !sequence_.ledgers[i]->take_all(length, sealed, freed)) return false;
  }
  for (HeadState& head : sequence_.heads) {
    if (from_.ok() && !head.load(from_)) return false;
  }
  if (from_.ok()) page_ = sequence_.ledgers[0]->first_page();
  return true;
}

// The next one of the group. False where memory is exhausted.
bool SequenceImport::read_page() {
  const Plan& plan = cache_->plan();
  const PageLedger& ledger = *sequence_.ledgers[group_];
  HostPageStore& store = *cache_->groups_[group_].store;
  if (page_ < ledger.n_sealed()) {
    const std::byte* entry = from_.skip(store.layout().entry_bytes());
    bool enough = true;
    if (entry != nullptr) {
      cache_->for_each_head(sequence_, cache_->groups_[group_],
                            [&](HeadState& head) { enough = enough && head.import_page(page_, entry); });
    }
    return enough;
  }
  const int n = rows_of(ledger, page_);
  for (int head = 0; head < store.n_heads(); ++head) {
    for (const Side side : kSides) {
      const std::byte* rows = from_.skip(plan.tail->short_page_bytes(plan.geometry.head_dim, n));
      if (rows != nullptr) store.import_rows(rows, n, head, side, ledger.tail(page_));
    }
  }
  return true;
}

Result<bool> SequenceImport::advance(std::size_t n_bytes) {
  if (cache_->step_open_)
    return error("cannot import a sequence while a step is open: commit or abort it first");
  if (cache_->on_device()) return cache_->not_on_a_device("restore");
  const std::size_t start = from_.n_left();
  try {
    if (!std::exchange(begun_, true) && !read_head()) return cache_->out_of_memory("importing a sequence");
    const std::size_t n_groups = sequence_.ledgers.size();
    for (; group_ < n_groups && from_.ok();
         ++group_, page_ = group_ < n_groups ? sequence_.ledgers[group_]->first_page() : 0) {
      for (; page_ < pages_for(sequence_.ledgers[group_]->length()) && from_.ok(); ++page_) {
        if (start - from_.n_left() >= n_bytes) return false;
        if (!read_page()) return cache_->out_of_memory("importing a sequence");
      }
    }
  } catch (const std::bad_alloc&) {
    return cache_->out_of_memory("importing a sequence");
  }
  from_.require(from_.at_end());
  if (from_.ok()) return true;
  const Plan& plan = cache_->plan();
  return error(
      "cannot import a sequence of {} bytes: they are not of a cache of {} with {} layers, {} KV heads and "
      "head size {}, or they are damaged; compute the sequence again",
      n_bytes_, label(plan.recipe), plan.geometry.n_layers, plan.geometry.n_kv_heads, plan.geometry.head_dim);
}

SequenceId SequenceImport::take() {
  cache_->sequences_.emplace(cache_->next_id_, std::move(sequence_));
  return cache_->next_id_++;
}

Result<SequenceId> Cache::import_sequence(std::span<const std::byte> bytes) {
  SequenceImport whole(*this, bytes);
  if (const auto done = whole.advance(kAll); !done.ok()) return done.error();
  try {
    return whole.take();
  } catch (const std::bad_alloc&) {
    return out_of_memory("importing a sequence");
  }
}

}  // namespace kvant
