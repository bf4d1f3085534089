// DeviceImage: what a device keeps of a sequence in the order of its image, and back (the format is at the
// top of sequence_image.cc). What a cache in host memory has written can be read on a device, and the other
// way round, where both tails are BF16.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/byte_stream.h"
#include "cache/device_page_store.h"
#include "cache/head_image.h"

namespace kvant {

class DeviceImage {
 public:
  // The store outlives it.
  explicit DeviceImage(DevicePageStore& store);

  // --- pages: a sealed entry of a group, or the first rows of one of its tail ---
  // An error: the device has failed.
  Status write_page(ByteWriter& to, int group, PageEntry entry, int n_rows);
  // What can't be is refused by the reader.
  void read_page(ByteReader& from, int group, PageEntry entry, int n_rows);

  // --- what a sequence holds besides them ---
  using Bytes = std::vector<std::byte>;
  // Holds the bytes of entries in host memory; a missing entry has no bytes.
  struct Entries {
    int rows_room = kSinkRoom;
    std::vector<Bytes> rows;  // of the sink, or of protected rows: as many to an entry as it has room for
    Bytes sums, checkpoint_sums, observers;
    // The token of the first observer, whose queries are in all heads of the same tokens; -1: there are none.
    static constexpr int kUnknown = -2;
    int first_observer = kUnknown;
  };
  Bytes room_for(int room) const { return Bytes(store_.beside().layout(room).bytes); }
  Result<Bytes> fetch(DeviceEntryStore& entries, PageEntry entry) const;

  // The protected tokens' rows and masks, the sums, and the scores with the observers of a head of a sequence
  // of n_tokens.
  HeadImage head(const Entries& entries, const ImagedHead& head, std::vector<int> tokens, TokenScores scores);
  // Puts a head's image into entries that have room for it, and leaves its scores without observers. False
  // where no device can have made it.
  bool put(HeadImage& image, const ImagedHead& head, Entries& entries);

 private:
  // Rows [n, head_dim] in BF16, and a page of an entry that begins with them.
  void to_image(const std::byte* page, std::size_t page_bytes, Side side, int d, int n, std::byte* rows);
  void from_image(const std::byte* rows, int n, Side side, int d, std::byte* page, std::size_t page_bytes);
  // Moves a head's rows [first, first + n) of one side between an image and their entries.
  template <class Move>
  void for_each_row_page(int rows_room, int layer, int kv_head, Side side, int n, const Move& move) const;
  std::vector<float> sums(const Bytes& entry, int layer, int kv_head) const;
  bool put_sums(const std::vector<float>& sums, int layer, int kv_head, Bytes& entry) const;
  void observe(const Bytes& entry, int first, const ImagedHead& head, TokenScores& scores) const;
  bool put_observers(TokenScores& scores, const ImagedHead& head, Entries& entries) const;
  template <class Visit>
  void for_each_side(int group, const Visit& visit) const;

  const Plan& plan_;
  DevicePageStore& store_;
  Bytes page_;   // a page of BF16 rows, canonical
  Bytes moved_;  // and in the device's order
};

// The masks of pages that have some of these tokens, which ascend.
std::vector<PageMask> masks_of(const std::vector<int>& tokens);

}  // namespace kvant
