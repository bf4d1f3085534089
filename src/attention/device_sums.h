// DeviceSums holds the sums of a correction (KVLinC) in a step whose pages lie on a device.
//
// DeviceSums keeps the sums after each sealed page, so each row finds the sums of exactly the pages that it
// sees sealed. In a step that seals, the buffer holds the sums of one layer. A slice has its earlier sums,
// then the sums after each page that it seals. Other steps read the sums in the store.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_buffer.h"
#include "cache/device_sequence.h"

namespace kvant {

class DeviceSums {
 public:
  explicit DeviceSums(std::shared_ptr<PageDevice> device) : device_(device), buffer_(std::move(device)) {}

  // Begins a step of a corrected plan and adds to the indices. An error says that memory is exhausted or that
  // the device has failed.
  Status begin(const Step& step, IndexBuffer& indices);
  // Returns the correction of a layer for rows from from_row on.
  kvant_correction of_rows(const Step& step, int layer, const IndexBuffer& indices, int from_row) const;
  // Seals the step's due pages of a corrected layer, which `range` names. at_layer has the tables of slices.
  kvant_status seal(const Step& step, int layer, const kvant_decode_shape& of_slices,
                    const kvant_decode_layer& at_layer, const kvant_seal_range& range,
                    const IndexBuffer& indices);

 private:
  // in_store() returns the address of a layer's sums in an entry. after() returns the address of a slice's
  // sums in buffer_ after n_pages of the pages that it seals.
  static char* in_store(const Step& step, int layer, const std::shared_ptr<SequenceNumbers>& sums);
  char* after(const Step& step, int slice, int n_pages) const;

  std::shared_ptr<PageDevice> device_;
  DeviceBuffer buffer_;
  std::vector<int> first_sums_;  // by slice, in units of a layer's sums
  std::vector<int> due_;         // pages that each slice seals
  int max_due_ = 0;
  IndexBuffer::Part row_sums_;    // The places of the rows' sums, in buffer_ or in the store.
  IndexBuffer::Part slice_sums_;  // The places of the earlier sums of each slice.
};

}  // namespace kvant
