// HostPageStore owns the bytes of one layer group's entries in host memory, and appends, seals, copies and
// reopens pages. The ledger says which entries a sequence holds (page_ledger.h).
//
// Each (layer, KV head, side) of an entry is a page of its own in pools by size (docs/dev/cache.md says why).
// The pages of a sealed entry exist once their head holds them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
class HostPageStore final : public EntryStore {
 public:
  // The store serves `layers` of the plan. Plan and pools outlive the store.
  HostPageStore(const Plan& plan, std::vector<int> layers, PagePools& pools);

  PageEntry take(int room) override;
  void retain(PageEntry entry) override { table(entry.room).retain(entry.id); }
  void release(PageEntry entry) noexcept override { table(entry.room).release(entry.id); }
  bool shared(PageEntry entry) const override { return table(entry.room).shared(entry.id); }
  bool copy(PageEntry from, int n, PageEntry to) override;

  // Returns the index of a (layer, KV head) in the group. `head` is this index in the functions below.
  int head_index(int layer, int kv_head) const;

  // Gives a head memory for its pages of a sealed entry, unless it has them. Returns false or throws
  // std::bad_alloc if memory is exhausted.
  bool hold(PageEntry sealed, int head);
  void drop(PageEntry sealed, int head) noexcept;  // Gives the memory back, if the head has any.

  // Writes rows of both sides, [n, d], as tokens [first, first + n) of a tail's entry.
  void append(PageEntry tail, int head, int first, MatrixView<const float> k, MatrixView<const float> v);
  // Encodes page `page` of a sequence, [kPageTokens, d], into a sealed entry that the head holds.
  void seal(PageEntry sealed, int head, Side side, int page, const TokenMask& left_out, const float* values);
  // Decodes the first n tokens of an entry into values [n, d].
  void read(PageEntry entry, int head, Side side, int n, float* values) const;
  // Writes n rows of one side, [n, d], from token `first` on, when a sealed page is opened again.
  void write_rows(PageEntry tail, int head, Side side, int first, int n, const float* values);

  PageSide side(PageEntry entry, int head, Side side) const {
    const int at = part(head, side);
    if (entry.room == kSealedRoom) {
      const SidePlan& plan = *sides_[at];
      return {plan.sealed, sealed_.data(entry.id, at), &plan.context};
    }
    return {plan_.tail, table(entry.room).data(entry.id, at), &tail_context(at, entry.room)};
  }

  // Write and read one side of a head in canonical bytes: a sealed page, or the first n rows of a tail's
  // entry as a short page.
  void save(PageEntry entry, int head, Side side, int n, std::byte* canonical) const;
  void load(const std::byte* canonical, int n, int head, Side side, PageEntry entry);

  // Returns the bytes of a head's two pages in an entry of this room.
  std::int64_t head_bytes(int room, int head) const;

 private:
  static constexpr int kTailSizes = kPageTokens / kTailStep;
  static int part(int head, Side side) { return 2 * head + static_cast<int>(side); }
  EntryTable& table(int room) { return room == kSealedRoom ? sealed_ : tails_[room / kTailStep - 1]; }
  const EntryTable& table(int room) const {
    return room == kSealedRoom ? sealed_ : tails_[room / kTailStep - 1];
  }
  const PageContext& tail_context(int part, int room) const {
    return tail_contexts_[part * kTailSizes + room / kTailStep - 1];
  }

  const Plan& plan_;
  std::vector<int> layers_;                 // in ascending order
  std::vector<const SidePlan*> sides_;      // [parts]
  std::vector<PageContext> tail_contexts_;  // [parts][kTailSizes]
  EntryTable sealed_;
  std::array<EntryTable, kTailSizes> tails_;  // Tables of entries with room for 16, 32, ... tokens.
};

}  // namespace kvant
