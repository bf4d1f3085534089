// DeviceImage converts what a device keeps of a sequence to the form of the sequence's image, and back
// (sequence_image.cc describes the format). If both tails are BF16, a device can read an image that a cache
// in host memory has written, and host memory can read a device's image.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/byte_stream.h"
#include "cache/device_page_store.h"
#include "cache/head_image.h"

namespace kvant {

class DeviceImage {
 public:
  // The store outlives this object.
  explicit DeviceImage(DevicePageStore& store);

  // --- pages ---
  // Write and read one part of a page in the bytes of its entry.
  void save_part(const std::byte* entry, const PagePart& part, std::byte* canonical);
  void load_part(const std::byte* canonical, const PagePart& part, std::byte* entry);

  // --- auxiliary data ---
  using Bytes = std::vector<std::byte>;
  // Holds the bytes of entries in host memory; a missing entry has no bytes.
  struct Entries {
    std::vector<Bytes> rows;  // protected rows, as many to an entry as the entry has room for
    Bytes sums, checkpoint_sums, observers;
    // Holds the token of the first observer, or -1 without observers. All heads have observers of equal
    // tokens.
    static constexpr int kUnknown = -2;
    int first_observer = kUnknown;
  };
  Bytes room_for(int room) const { return Bytes(store_.auxiliary().layout(room).bytes); }
  Result<Bytes> fetch(DeviceEntryStore& entries, PageEntry entry) const;

  // Adds rows of protected tokens, sums and observers to the image of a head.
  void add_to(HeadImage& image, const ImagedHead& head, const Entries& entries);
  // Puts a head's image into entries that have room for it. Returns false if no device can have made the
  // image.
  bool put(const HeadImage& image, const ImagedHead& head, Entries& entries);

 private:
  // Convert between rows [n, head_dim] in BF16 and a page of an entry that begins with these rows.
  void to_image(const std::byte* page, std::size_t page_bytes, Side side, int d, int n, std::byte* rows);
  void from_image(const std::byte* rows, int n, Side side, int d, std::byte* page, std::size_t page_bytes);
  // Moves n rows of one side of a head between an image and the entries of the rows.
  template <class Move>
  void for_each_row_page(int layer, int kv_head, Side side, int n, const Move& move) const;
  std::vector<float> sums(const Bytes& entry, int layer, int kv_head) const;
  bool put_sums(const std::vector<float>& sums, int layer, int kv_head, Bytes& entry) const;
  void observe(const Bytes& entry, int first, const ImagedHead& head, Observers& observers) const;
  bool put_observers(const Observers& observers, const ImagedHead& head, Entries& entries) const;

  const Plan& plan_;
  DevicePageStore& store_;
  Bytes page_;   // a page of BF16 rows in canonical order
  Bytes moved_;  // page_ in the device's order
};

}  // namespace kvant
