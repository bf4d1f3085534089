// A sequence as bytes (Cache::export_sequence, import_sequence).
//
// All numbers are little-endian, integers are of 32 bits:
//   magic, version, layers, KV heads, head size, length, pages summed up by the checkpoint
//   for each layer group: sealed pages, freed pages
//   for each (layer, KV head): what lies beside the entries (HeadState::save)
//   for each layer group: its sealed entries in canonical order (PageLayout), oldest first; pages of which
//   all is evicted are zero. Then the unsealed pages: of each head K's rows, then V's.
#include <new>

#include "cache/byte_stream.h"
#include "cache/cache.h"

namespace kvant {
namespace {

constexpr std::uint32_t kMagic = 0x7173766b;  // "kvsq"
constexpr int kVersion = 1;
constexpr int kMaxTokens = 1 << 30;

std::array<std::int32_t, 5> shape_of(const Geometry& g) {
  return {static_cast<std::int32_t>(kMagic), kVersion, g.n_layers, g.n_kv_heads, g.head_dim};
}

int rows_of(const PageLedger& ledger, int page) {
  return std::min(kPageTokens, ledger.length() - page * kPageTokens);
}

}  // namespace

Result<std::vector<std::byte>> Cache::export_sequence(SequenceId sequence) const {
  KVANT_RETURN_IF_ERROR(check_idle(sequence, "export"));
  if (on_device()) return not_on_a_device("save");
  const Sequence& s = sequences_.at(sequence);
  const Geometry& g = plan_->geometry;
  try {
    ByteWriter to;
    to.write(shape_of(g));
    to.write<std::int32_t>(s.length());
    to.write<std::int32_t>(s.checkpoint_pages);
    for (const auto& ledger : s.ledgers) {
      to.write<std::int32_t>(ledger->n_sealed());
      to.write<std::int32_t>(ledger->first_page());
    }
    for (const HeadState& head : s.heads) head.save(to);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const PageLedger& ledger = *s.ledgers[i];
      const HostPageStore& store = *groups_[i].store;
      for (int page = ledger.first_page(); page < ledger.n_sealed(); ++page) {
        std::byte* entry = to.skip(store.layout().entry_bytes());
        for_each_head(s, groups_[i], [&](const HeadState& head) { head.export_page(page, entry); });
      }
      for (int page = ledger.n_sealed(); page < pages_for(ledger.length()); ++page) {
        const int n = rows_of(ledger, page);
        for (int head = 0; head < store.n_heads(); ++head) {
          for (const Side side : kSides)
            store.export_rows(ledger.tail(page), head, side, n,
                              to.skip(plan_->tail->short_page_bytes(g.head_dim, n)));
        }
      }
    }
    return to.take();
  } catch (const std::bad_alloc&) {
    return out_of_memory("exporting a sequence");
  }
}

// False where memory is exhausted.
bool Cache::import_entries(Sequence& s, int group, ByteReader& from) {
  PageLedger& ledger = *s.ledgers[group];
  HostPageStore& store = *groups_[group].store;
  for (int page = ledger.first_page(); page < ledger.n_sealed() && from.ok(); ++page) {
    const std::byte* entry = from.skip(store.layout().entry_bytes());
    if (entry == nullptr) break;
    bool enough = true;
    for_each_head(s, groups_[group],
                  [&](HeadState& head) { enough = enough && head.import_page(page, entry); });
    if (!enough) return false;
  }
  const int d = plan_->geometry.head_dim;
  for (int page = ledger.n_sealed(); page < pages_for(ledger.length()) && from.ok(); ++page) {
    const int n = rows_of(ledger, page);
    for (int head = 0; head < store.n_heads(); ++head) {
      for (const Side side : kSides) {
        const std::byte* rows = from.skip(plan_->tail->short_page_bytes(d, n));
        if (rows != nullptr) store.import_rows(rows, n, head, side, ledger.tail(page));
      }
    }
  }
  return true;
}

// False where memory is exhausted.
bool Cache::import_into(Sequence& s, ByteReader& from) {
  const auto shape = from.read<std::array<std::int32_t, 5>>();
  from.require(shape == shape_of(plan_->geometry));
  const int length = from.read_int(0, kMaxTokens);
  s.checkpoint_pages = from.read_int(-1, length / kPageTokens);
  for (std::size_t i = 0; i < groups_.size() && from.ok(); ++i) {
    const int sealed = from.read_int(0, length / kPageTokens);
    const int freed = from.read_int(0, freed_pages(length, groups_[i].rules.sliding_window, sealed));
    // What it is to hold has to be there, before memory is taken for it.
    from.require(from.n_left() / groups_[i].store->layout().entry_bytes() >=
                 static_cast<std::size_t>(sealed - freed));
    from.require(from.n_left() / plan_->tail->short_page_bytes(plan_->geometry.head_dim, 1) >=
                 static_cast<std::size_t>(length - sealed * kPageTokens));
    if (from.ok() && !s.ledgers[i]->take_all(length, sealed, freed)) return false;
  }
  for (HeadState& head : s.heads) {
    if (from.ok() && !head.load(from)) return false;
  }
  for (std::size_t i = 0; i < groups_.size() && from.ok(); ++i) {
    if (!import_entries(s, static_cast<int>(i), from)) return false;
  }
  from.require(from.at_end());
  return true;
}

Result<SequenceId> Cache::import_sequence(std::span<const std::byte> bytes) {
  if (on_device()) return not_on_a_device("restore");
  if (step_open_) return error("cannot import a sequence while a step is open: commit or abort it first");
  try {
    Sequence sequence = empty_sequence();
    ByteReader from(bytes);
    if (!import_into(sequence, from)) return out_of_memory("importing a sequence");
    if (!from.ok()) {
      return error(
          "cannot import a sequence of {} bytes: they are not of a cache of {} with {} layers, {} KV heads "
          "and "
          "head size {}, or they are damaged; compute the sequence again",
          bytes.size(), label(plan_->recipe), plan_->geometry.n_layers, plan_->geometry.n_kv_heads,
          plan_->geometry.head_dim);
    }
    sequences_.emplace(next_id_, std::move(sequence));
    return next_id_++;
  } catch (const std::bad_alloc&) {
    return out_of_memory("importing a sequence");
  }
}

}  // namespace kvant
