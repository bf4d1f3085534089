// DeviceImage: what a device keeps of a sequence as the bytes of a sequence's image, and back (the format is
// at the top of sequence_image.cc). What a cache in host memory has written can be read on a device, and the
// other way round, where both tails are BF16.
#pragma once

#include <vector>

#include "cache/byte_stream.h"
#include "cache/device_page_store.h"

namespace kvant {

class DeviceImage {
 public:
  // Plan and store outlive it.
  DeviceImage(const Plan& plan, DevicePageStore& store);

  // Entries of what lies beside pages; none where there is no such thing.
  struct Beside {
    PageEntry sink, sums, checkpoint_sums;
  };

  // Errors: the device has failed, or a sink of unquantized tokens, which it doesn't tell from others.
  Status write_heads(ByteWriter& to, int n_sealed, const Beside& beside);
  // A sealed entry of a group, or the first rows of one of its tail.
  Status write_page(ByteWriter& to, int group, PageEntry entry, int n_rows);

  // Entries are those of a sequence that has them all; what can't be is refused by the reader.
  // Sums that the image doesn't have, though there is an entry for them, are left without one.
  void read_heads(ByteReader& from, int n_sealed, Beside& beside);
  // The same of plans that protect by score, for a sequence of n_tokens. Read: into entries for all rows that
  // may be protected, and for observers, if there may be any; those that aren't needed are given back.
  Status write_protection(ByteWriter& to, int n_sealed, int n_tokens, const DeviceProtection& protection);
  void read_protection(ByteReader& from, int n_sealed, int n_tokens, DeviceProtection& protection);
  void read_page(ByteReader& from, int group, PageEntry entry, int n_rows);

 private:
  // The place of a page in the bytes of an entry that bytes_ holds.
  std::byte* place(int room, int layer, int head, Side side);
  Status fetch(DeviceEntryStore& store, PageEntry entry);
  const EntryLayout& layout(int room, int layer) const { return store_.store_of(room, layer).layout(room); }
  // Rows [n, head_dim] in BF16 of one side, of such an entry.
  void write_rows(ByteWriter& to, int room, int layer, int head, Side side, int n);
  void read_rows(const std::byte* from, int room, int layer, int head, Side side, int n);
  // A head's sums [features][head_dim + 1], as host memory has them; on the device z follows S.
  void write_sums(ByteWriter& to, const std::vector<std::byte>& all, int layer, int head) const;
  void read_sums(ByteReader& from, std::vector<std::byte>& all, bool& any, int layer, int head) const;
  int page_rows(int room, int layer) const;  // that a page of an entry has room for
  // Of one layer: [kObservers][n_heads][head_dim], [kObservers][n_heads].
  struct Observers {
    float *q, *lse;
  };
  Observers observers_in(std::vector<std::byte>& bytes, int layer) const;
  // Queries of which tokens observe: from `first` (negative: none), before `end`.
  struct ObservedTokens {
    static constexpr int kUnknown = -2;
    int first, end;
  };
  void write_protected(ByteWriter& to, std::vector<std::vector<std::byte>>& entries,
                       const ProtectedTokens::Head& head, int layer, int kv_head, int n_sealed);
  void write_scores(ByteWriter& to, std::vector<std::byte>& observers, TokenScores scores,
                    const ObservedTokens& observed, int layer, int kv_head) const;
  void read_protected(ByteReader& from, std::vector<std::vector<std::byte>>& entries,
                      ProtectedTokens::Head& head, int layer, int kv_head, int n_sealed);
  void read_scores(ByteReader& from, std::vector<std::byte>& observers, TokenScores& scores,
                   ObservedTokens& observed, int layer, int kv_head) const;
  template <class Visit>
  void for_each_side(int group, const Visit& visit) const;

  const Plan& plan_;
  DevicePageStore& store_;
  std::vector<std::byte> bytes_;  // of one entry, as it lies on the device
  std::vector<std::byte> page_;   // a page of BF16 rows, canonical
  std::vector<std::byte> moved_;  // and in the device's order
};

}  // namespace kvant
