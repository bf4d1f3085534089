// HostPageStore owns the bytes of entries in host memory, and appends, seals and copies pages. The
// entries are the pages of one layer group, or the protected rows of all layers.
//
// Each (layer, KV head, side) of an entry is a page of its own, in the pool for its size (docs/dev/cache.md
// says why). The pages of a sealed entry and of protected rows exist once their head holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/matrix_view.h"
#include "cache/entry_table.h"
#include "cache/page_ledger.h"
#include "cache/page_pool.h"
#include "format/page_view.h"
#include "recipe/plan.h"

namespace kvant {

// Threads may work on different heads of one entry at the same time, while nobody takes, holds, drops or
// releases.
class HostPageStore final : public PartStore {
 public:
  // Makes the store of a group with these layers. Plan and pools outlive the store.
  HostPageStore(const Plan& plan, std::vector<int> layers, PagePools& pools);
  // Makes the store of protected rows, whose entries have rows_of_layer[layer] rows of each head.
  HostPageStore(const Plan& plan, PagePools& pools, const std::vector<int>& rows_of_layer);

  PageEntry take(int room) override;
  void retain(PageEntry entry) override { table(entry.room).retain(entry.id); }
  void release(PageEntry entry) noexcept override { table(entry.room).release(entry.id); }
  bool shared(PageEntry entry) const override { return table(entry.room).shared(entry.id); }
  bool copy(PageEntry from, int n, PageEntry to) override;
  std::int64_t bytes_of(PageEntry entry) const override { return table(entry.room).bytes_of(entry.id); }
  std::int64_t side_bytes(PageEntry entry, int layer, int kv_head, Side side) const override;
  Status save(PageEntry entry, std::span<const PagePart> parts, std::byte* image) const override;
  bool load(const std::byte* image, std::span<const PagePart> parts, PageEntry entry) override;

  // Returns the index of a (layer, KV head) in the store. `head` is this index in the functions below.
  int head_index(int layer, int kv_head) const;

  // Allocates a head's pages in a sealed entry or in an entry of protected rows. Pages that the head already
  // has stay. Returns false or throws std::bad_alloc if memory is exhausted.
  bool hold(PageEntry entry, int head);
  void drop(PageEntry entry, int head) noexcept;  // Gives the memory back, if the head has any.

  // Writes rows of both sides, [n, d], as tokens [first, first + n) of a tail's entry.
  void append(PageEntry tail, int head, int first, MatrixView<const float> k, MatrixView<const float> v);
  // Encodes page `page` of a sequence, [kPageTokens, d], into a sealed entry that the head holds.
  void seal(PageEntry sealed, int head, Side side, int page, const TokenMask& left_out, const float* values);
  // Decodes the first n tokens of an entry into values [n, d].
  void read(PageEntry entry, int head, Side side, int n, float* values) const;
  // Writes n rows of one side, [n, d], from row `first` of an unsealed entry on.
  void write_rows(PageEntry entry, int head, Side side, int first, int n, const float* values);

  PageSide side(PageEntry entry, int head, Side side) const {
    const int at = part(head, side);
    if (entry.room == kSealedRoom) {
      const SidePlan& plan = *sides_[at];
      return {plan.sealed, sealed_.data(entry.id, at), &plan.context};
    }
    const ShortPages& pages = short_pages(entry.room);
    return {plan_.tail, pages.entries.data(entry.id, at), &pages.contexts[at]};
  }

 private:
  // Holds the entries of one room. Their pages have unquantized rows.
  struct ShortPages {
    ShortPages(std::vector<PagePool*> pools, std::vector<PageContext> of_parts)
        : entries(std::move(pools)), contexts(std::move(of_parts)) {}
    EntryTable entries;
    std::vector<PageContext> contexts;  // [parts]
  };
  static int part(int head, Side side) { return 2 * head + static_cast<int>(side); }
  void add_short_pages(PagePools& pools, const std::function<int(int layer)>& rows);
  static std::size_t kind(int room) { return room == kProtectedRoom ? 0 : room / kTailStep - 1; }
  const ShortPages& short_pages(int room) const { return short_pages_[kind(room)]; }
  EntryTable& table(int room) { return room == kSealedRoom ? sealed_ : short_pages_[kind(room)].entries; }
  const EntryTable& table(int room) const {
    return room == kSealedRoom ? sealed_ : short_pages_[kind(room)].entries;
  }

  const Plan& plan_;
  std::vector<int> layers_;             // in ascending order
  std::vector<const SidePlan*> sides_;  // [parts]
  EntryTable sealed_;
  std::deque<ShortPages> short_pages_;  // Room for 16, 32, ... 128 tokens, or protected rows alone.
};

}  // namespace kvant
