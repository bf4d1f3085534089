// DeviceSequence is the part of a sequence that lies on a device. All its entries serve all heads at once.
// Forks share these entries. A step writes new entries, or rows that no committed sequence uses.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache.h"
#include "cache/device_image.h"
#include "cache/device_page_store.h"
#include "cache/entry_hold.h"
#include "cache/sequence_pages.h"

namespace kvant {

// Holds a correction's sums in an entry of a device.
struct SumsEntry final : SequenceSums {
  explicit SumsEntry(EntryHold entry) : hold(std::move(entry)) {}
  EntryHold hold;
};

// Holds the queries of the open page that observe: those of the tokens from `first` on. -1 means no
// observers.
struct DeviceObservers {
  EntryHold hold;
  int first = -1;
};

// Returns the first query that observes when the page that ends at page_end ends. The step appends tokens
// from `first` on, and the sequence had observers from first_observer on.
int first_observer_of(int page_end, int first, int first_observer);

class DeviceSequence final : public SequencePages {
 public:
  explicit DeviceSequence(DevicePageStore& store);

  DevicePageStore& store() const { return store_; }
  // Returns the entry of sums, which is not held if there are none.
  static PageEntry entry_of(const std::shared_ptr<SequenceSums>& sums) {
    return sums == nullptr ? PageEntry{} : static_cast<const SumsEntry&>(*sums).hold.entry();
  }
  // Return the observers when the step began, and as the step leaves them.
  const DeviceObservers& observers() const { return observers_; }
  const DeviceObservers& next_observers() const { return next_observers_; }

  Result<ListedPages> list_pages(int layer, int kv_head, int first_visible) const override;
  int image_sealed(int group) const override;

 private:
  bool on_reserve() override;
  void on_commit() override;
  void on_abort() override;
  void on_copy(const SequencePages& from) override;
  Status reopen(int group, int n_tokens, PageEntry sealed, PageEntry tail) override;
  void on_truncate(int n_tokens) override;
  std::shared_ptr<SequenceSums> make_sums() override;
  std::int64_t bytes_of(const SequenceSums& sums) const override;
  void visit_observers(const Visit& visit) const override;
  Status on_save(std::vector<HeadImage>& images) const override;
  bool on_load(ByteReader& from, std::vector<HeadImage>& images) override;

  // If memory is exhausted, each of these functions returns false or a hold without an entry.
  EntryHold take(int room) { return {store_.auxiliary(), store_.auxiliary().take(room)}; }

  const Plan& plan() const { return store_.plan(); }

  DevicePageStore& store_;
  DeviceObservers observers_, next_observers_;
};

// Return a slice of a step whose pages lie on a device, and the store of these pages. Code that attends on
// the device uses both.
DeviceSequence& device_sequence(const Step& step, int slice);
DevicePageStore& device_pages(const Step& step);

}  // namespace kvant
