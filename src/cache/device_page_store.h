// DevicePageStore owns the bytes of a cache's entries in the memory of a device. The ledgers say which
// entries a sequence holds (page_ledger.h), and the library computes on pages.
//
// The pages of each layer group have entries of their own: sealed entries, and tail entries with room for a
// whole page. Other data take one entry for the layers of all groups: protected rows, a correction's sums,
// and observing queries.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/device_entry_store.h"
#include "cache/device_layout.h"
#include "cache/placed_plan.h"
#include "cache/sequence_pages.h"

namespace kvant {

class DeviceSequence;

class DevicePageStore final : public SequenceStore {
 public:
  // The plan's device keeps the pages. A byte_limit of 0 means no limit.
  DevicePageStore(const PlacedPlan& placed, std::int64_t byte_limit);

  std::unique_ptr<SequencePages> make_sequence() override;
  bool groups_seal_alike() const override { return true; }
  std::int64_t page_bytes_in_use() const override;
  // A device keeps the matrices of a state as transposes (Geometry::state_matrices).
  Status save_state(ByteWriter& to, const float* state) override;
  void load_state(const std::byte* from, float* state) override;
  Status finish() override { return device()->finish(); }

  const std::shared_ptr<PageDevice>& device() const { return placed_.device(); }
  const DeviceConstants& constants() const { return placed_.constants(); }
  const std::shared_ptr<const Plan>& shared_plan() const { return placed_.plan(); }

  // Return the pages of a layer's group. The rooms are kSealedRoom and kPageTokens.
  DeviceEntryStore& pages(int layer) { return *pages_[group_of(layer)]; }
  const DeviceEntryStore& pages(int layer) const { return *pages_[group_of(layer)]; }
  DeviceEntryTable& sealed(int layer) { return pages(layer).table(kSealedRoom); }
  DeviceEntryTable& tails(int layer) { return pages(layer).table(kPageTokens); }

  // Return the entries that hold no pages. The rooms are kProtectedRoom, kSumsRoom and kObserversRoom.
  DeviceEntryStore& auxiliary() { return auxiliary_; }
  const DeviceEntryStore& auxiliary() const { return auxiliary_; }
  bool has_sink() const { return has_sink_; }
  DeviceEntryTable& sums() { return auxiliary_.table(kSumsRoom); }
  DeviceEntryTable& protected_rows() { return auxiliary_.table(kProtectedRoom); }
  DeviceEntryTable& observers() { return auxiliary_.table(kObserversRoom); }

  // Returns the store of entries of a room in which a layer has a part.
  DeviceEntryStore& store_of(int room, int layer) { return room < 0 ? auxiliary_ : pages(layer); }

  // Tells the library where a layer's sealed pages lie. The caller fills in the tables. The addresses are
  // valid as long as the store.
  void add_sealed(kvant_decode_layer& at_layer, int layer) const;

  // Sets the sums to zero, as of a correction that has summed up nothing.
  void clear_sums(PageEntry sums);

  // Gathers the bytes of one head's key page and value page, entry by entry. The bytes follow what was
  // gathered since the last download, so the host waits only once. Returns their offset in the download. An
  // error says that the device has failed or that its memory is exhausted.
  Result<std::size_t> gather_head(std::span<const PageEntry> entries, int layer, int kv_head);
  Status download_gathered(std::vector<std::byte>& to);

 private:
  bool shrink() noexcept override;
  Status make_room_to_gather(std::size_t bytes);
  void transpose_state(bool to_device, const float* from, float* to) const;

  PlacedPlan placed_;
  PageDevice& device_;
  bool has_sink_;
  std::vector<std::unique_ptr<DeviceEntryStore>> pages_;  // [n_groups]
  DeviceEntryStore auxiliary_;

  DeviceMemory gathered_{nullptr, {nullptr}};
  std::size_t gathered_room_ = 0, gathered_bytes_ = 0;
};

}  // namespace kvant
