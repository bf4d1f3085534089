// DeviceSequence is the part of a sequence that lies on a device. All its entries serve all heads at once.
// Forks share these entries. A step writes new entries, or rows that no committed sequence uses.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache.h"
#include "cache/device_page_store.h"
#include "cache/entry_hold.h"
#include "cache/sequence_pages.h"

namespace kvant {

// Holds numbers of all heads in an entry of a device.
struct NumbersEntry final : SequenceNumbers {
  explicit NumbersEntry(EntryHold entry) : hold(std::move(entry)) {}
  EntryHold hold;
};

class DeviceSequence final : public SequencePages {
 public:
  explicit DeviceSequence(DevicePageStore& store);

  DevicePageStore& store() const { return store_; }
  // Returns the entry of sums or observers, which is not held if there are none.
  static PageEntry entry_of(const std::shared_ptr<SequenceNumbers>& numbers) {
    return numbers == nullptr ? PageEntry{} : static_cast<const NumbersEntry&>(*numbers).hold.entry();
  }

  Result<ListedPages> list_pages(int layer, int kv_head, int first_visible) const override;
  int image_sealed(int group) const override;

 private:
  std::shared_ptr<SequenceNumbers> make_sums() override;
  std::shared_ptr<SequenceNumbers> make_observers(const SequenceNumbers* from) override;
  std::int64_t sums_bytes(const SequenceNumbers& /*sums*/) const override {
    return store_.auxiliary().entry_bytes(kSumsRoom);
  }
  std::int64_t observer_bytes() const override { return store_.auxiliary().entry_bytes(kObserversRoom); }
  Status on_save(std::vector<HeadImage>& images) const override;
  bool on_load(std::vector<HeadImage>& images) override;

  std::shared_ptr<SequenceNumbers> take(int room);
  // Holds the numbers of an entry in host memory, at first zeros.
  struct EntryNumbers;
  EntryNumbers numbers_of(int room) const;
  template <class See>
  void for_each_observer(EntryNumbers& numbers, int layer, int kv_head, const See& see) const;
  const Plan& plan() const { return store_.plan(); }

  DevicePageStore& store_;
};

// Return a slice of a step whose pages lie on a device, and the store of these pages. Code that attends on
// the device uses both.
DeviceSequence& device_sequence(const Step& step, int slice);
DevicePageStore& device_pages(const Step& step);

}  // namespace kvant
