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
  explicit DeviceImage(DevicePageStore& store) : plan_(store.plan()), store_(store) {}

  using Bytes = std::vector<std::byte>;
  // Holds the bytes of entries in host memory; a missing entry has no bytes.
  struct Entries {
    Bytes sums, checkpoint_sums, observers;
    // Holds the token of the first observer, or -1 without observers. All heads have observers of equal
    // tokens.
    static constexpr int kUnknown = -2;
    int first_observer = kUnknown;
  };
  Bytes room_for(int room) const { return Bytes(store_.auxiliary().layout(room).bytes); }

  // Adds sums and observers to the image of a head.
  void add_to(HeadImage& image, const ImagedHead& head, const Entries& entries) const;
  // Puts a head's image into entries that have room for it. Returns false if no device can have made the
  // image.
  bool put(const HeadImage& image, const ImagedHead& head, Entries& entries) const;

 private:
  std::vector<float> sums(const Bytes& entry, int layer, int kv_head) const;
  bool put_sums(const std::vector<float>& sums, int layer, int kv_head, Bytes& entry) const;
  void observe(const Bytes& entry, int first, const ImagedHead& head, Observers& observers) const;
  bool put_observers(const Observers& observers, const ImagedHead& head, Entries& entries) const;

  const Plan& plan_;
  DevicePageStore& store_;
};

}  // namespace kvant
