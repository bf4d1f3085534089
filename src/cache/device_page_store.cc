#include "cache/device_page_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cache/device_constants.h"
#include "cache/device_sequence.h"
#include "cache/layer_groups.h"

namespace kvant {

DevicePageStore::DevicePageStore(const PlacedPlan& placed, std::int64_t byte_limit)
    : SequenceStore(*placed, byte_limit, placed.device().get(), protects_by_score(*placed)),
      placed_(placed),
      device_(*placed_.device()),
      has_sink_(device_sink(plan_) > 0),
      auxiliary_(plan_, device_, mutable_budget(),
                 {{kProtectedRoom, protected_layout(plan_)},
                  {kSumsRoom, correction_layout(plan_)},
                  {kObserversRoom, observer_layout(plan_)}},
                 [this] { return shrink(); }) {
  set_protected_entries(auxiliary_, device_protected_rows(plan_));
  for (const LayersOfEntry& group : layer_groups(plan_)) {
    std::vector<DeviceEntryStore::Kind> kinds{
        {kSealedRoom, sealed_layout(plan_, device_.library(), group.layers)},
        {kPageTokens, plain_layout(plan_, kPageTokens, group.layers)}};
    pages_.push_back(std::make_unique<DeviceEntryStore>(plan_, device_, mutable_budget(), std::move(kinds),
                                                        [this] { return shrink(); }));
    add_group(device_rules(plan_, group.rules), group.layers, *pages_.back());
  }
}

// Memory that entries of one kind no longer need serves other kinds.
bool DevicePageStore::shrink() noexcept {
  bool any = auxiliary_.shrink();
  for (const auto& pages : pages_) any = pages->shrink() || any;
  return any;
}

std::int64_t DevicePageStore::page_bytes_in_use() const {
  std::int64_t bytes = auxiliary_.bytes_in_use();
  for (const auto& pages : pages_) bytes += pages->bytes_in_use();
  return bytes;
}

void DevicePageStore::transpose_state(bool to_device, const float* from, float* to) const {
  const Geometry& g = plan_.geometry;
  for (int layer = 0; layer < g.n_recurrent_layers; ++layer) {
    for (const StateMatrices& m : g.state_matrices) {
      const int rows = to_device ? m.rows : m.columns, columns = to_device ? m.columns : m.rows;
      const std::ptrdiff_t n_values = std::ptrdiff_t{rows} * columns;
      for (int i = 0; i < m.n; ++i, from += n_values, to += n_values) {
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < columns; ++c) to[std::ptrdiff_t{c} * rows + r] = from[r * columns + c];
        }
      }
    }
  }
}

std::unique_ptr<SequencePages> DevicePageStore::make_sequence() {
  return std::make_unique<DeviceSequence>(*this);
}

Status DevicePageStore::save_state(ByteWriter& to, const float* state) {
  const std::vector<float>::size_type n = plan_.geometry.recurrent_values;
  std::vector<float> moved(n), canonical(n);
  if (state != nullptr) {
    device_.enter();
    device_.download(moved.data(), state, n * sizeof(float));
    KVANT_RETURN_IF_ERROR(device_.finish());
    transpose_state(/*to_device=*/false, moved.data(), canonical.data());
  }
  std::memcpy(to.skip(n * sizeof(float)), canonical.data(), n * sizeof(float));
  return {};
}

void DevicePageStore::load_state(const std::byte* from, float* state) {
  const std::vector<float>::size_type n = plan_.geometry.recurrent_values;
  std::vector<float> canonical(n), moved(n);
  std::memcpy(canonical.data(), from, n * sizeof(float));
  transpose_state(/*to_device=*/true, canonical.data(), moved.data());
  device_.enter();
  device_.upload(state, moved.data(), n * sizeof(float));
}

Status DevicePageStore::make_room_to_gather(std::size_t bytes) {
  if (gathered_bytes_ + bytes <= gathered_room_) return {};
  const std::size_t room = 2 * (gathered_bytes_ + bytes);
  DeviceMemory larger = allocate_on(device_, room);
  if (larger == nullptr) return shortage("out of memory on {}: no room to look at pages", device_.name());
  if (gathered_bytes_ > 0) device_.copy(larger.get(), gathered_.get(), gathered_bytes_);
  KVANT_RETURN_IF_ERROR(device_.finish());
  gathered_ = std::move(larger);
  gathered_room_ = room;
  return {};
}

Result<std::size_t> DevicePageStore::gather_head(std::span<const PageEntry> entries, int layer, int kv_head) {
  const auto bytes_of = [&](PageEntry entry) {
    const EntryLayout::Layer& of_layer = store_of(entry.room, layer).layout(entry.room).layers[layer];
    return of_layer.bytes(kv_head, Side::key) + of_layer.bytes(kv_head, Side::value);
  };
  std::size_t bytes = 0;
  for (const PageEntry entry : entries) bytes += bytes_of(entry);
  device_.enter();
  KVANT_RETURN_IF_ERROR(make_room_to_gather(bytes));
  const std::size_t first = gathered_bytes_;
  for (const PageEntry entry : entries) {
    const DeviceEntryTable& table = store_of(entry.room, layer).table(entry.room);
    const std::size_t place = table.layout().layers[layer].place(kv_head, Side::key);
    device_.copy(gathered_.get() + gathered_bytes_, table.data(entry.id) + place, bytes_of(entry));
    gathered_bytes_ += bytes_of(entry);
  }
  return first;
}

Status DevicePageStore::download_gathered(std::vector<std::byte>& to) {
  to.resize(gathered_bytes_);
  device_.enter();
  if (gathered_bytes_ > 0) device_.download(to.data(), gathered_.get(), gathered_bytes_);
  gathered_bytes_ = 0;
  return device_.finish();
}

void DevicePageStore::add_sealed(kvant_decode_layer& at_layer, int layer) const {
  const DeviceEntryTable& sealed = pages(layer).table(kSealedRoom);
  at_layer.sealed = sealed.first_page(layer);
  at_layer.sealed_offsets = sealed.layout().layers[layer].page_offsets.data();
}

void DevicePageStore::clear_sums(PageEntry sums) {
  device_.enter();
  const DeviceEntryTable& table = auxiliary_.table(kSumsRoom);
  const std::size_t bytes = table.layout().bytes;
  device_.clear_rows(table.data(sums.id), bytes, bytes, 1);
}

}  // namespace kvant
