// DeviceSums: the sums of a correction (KVLinC) in a step whose pages lie on a device.
//
// Sums after each page that is sealed are kept, so that each row finds those of the pages that it sees
// sealed. Where a step seals, one layer's sums are worked on here: of each slice those that it has, then
// those after each of its pages. Other steps read the store's.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_buffer.h"
#include "cache/device_sequence.h"

namespace kvant {

class DeviceSums {
 public:
  explicit DeviceSums(std::shared_ptr<PageDevice> device) : device_(device), buffer_(std::move(device)) {}

  // Of a step of a corrected plan: adds to the indices. An error: memory is exhausted, or the device has
  // failed.
  Status begin(const Step& step, IndexBuffer& indices);
  // The sums of a corrected layer as rows from from_row on find them.
  kvant_correction of_rows(const Step& step, int layer, const IndexBuffer& indices, int from_row) const;
  // Seals the step's due pages of a corrected layer, which range names. at_layer has the tables of slices.
  kvant_status seal(const Step& step, int layer, const kvant_decode_shape& of_slices,
                    const kvant_decode_layer& at_layer, const kvant_seal_range& range,
                    const IndexBuffer& indices);

 private:
  // The sums of a layer in an entry, and those of a slice here when so many of its pages are sealed.
  static char* in_store(const Step& step, int layer, PageEntry sums);
  char* after(const Step& step, int slice, int n_pages) const;

  std::shared_ptr<PageDevice> device_;
  DeviceBuffer buffer_;
  std::vector<int> first_sums_;  // of a slice, in units of a layer's sums
  std::vector<int> due_;         // pages that a slice seals
  int max_due_ = 0;
  IndexBuffer::Part row_sums_;    // where each row's sums are: here, or in the store
  IndexBuffer::Part slice_sums_;  // where those are that each slice has
};

}  // namespace kvant
