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

void DevicePageStore::keep_sink(PageEntry tail, PageEntry rows, int layer) {
  const EntryLayout::Layer &from = tails(layer).layout().layers[layer],
                           &to = protected_rows().layout().layers[layer];
  const std::size_t n_pages = std::size_t{2} *
                              plan_.geometry.kv_heads(layer),  // All pages of a kind have equal sizes.
      from_bytes = from.bytes(0, Side::key), to_bytes = to.bytes(0, Side::key);
  device_.copy_rows(protected_rows().data(rows.id) + to.offset, to_bytes,
                    tails(layer).data(tail.id) + from.offset, from_bytes, to_bytes, n_pages);
}

void DevicePageStore::clear_sums(PageEntry sums) {
  device_.enter();
  const DeviceEntryTable& table = auxiliary_.table(kSumsRoom);
  const std::size_t bytes = table.layout().bytes;
  device_.clear_rows(table.data(sums.id), bytes, bytes, 1);
}

Status DevicePageStore::reopen(const DeviceSequence& sequence, int group, int page, PageEntry sealed,
                               PageEntry tail) {
  const std::vector<EntryHold>& protected_pages = sequence.rows();
  const Geometry& g = plan_.geometry;
  const DeviceEntryTable &of_sealed = of_group(group).table(kSealedRoom),
                         &of_tails = of_group(group).table(kPageTokens);
  device_.enter();
  // The memory holds one page as rows [token][head][channel] of both sides, and then tables, lengths and
  // token numbers. The masks of earlier pages say which protected rows belong to this page, so the page keeps
  // its own number.
  const std::size_t side_bytes = std::size_t{2} * kPageTokens * g.n_kv(layers(group).front());
  const int n_pages = page + 1;
  struct Numbers {
    std::int32_t tail_id, n_sealed, seq[kPageTokens], token[kPageTokens];
  } numbers{of_tails.table_id(tail.id), n_pages, {}, {}};
  for (int t = 0; t < kPageTokens; ++t) numbers.token[t] = t;
  std::vector<TokenMask> masks;  // [n_layers][n_kv_heads][n_pages]
  if (sequence.tokens() != nullptr) {
    for (const ProtectedTokens::Head& head : sequence.tokens()->heads) {
      for (int i = 0; i < n_pages; ++i) masks.push_back(head.mask(i));
    }
  }
  const std::vector<std::int32_t> sealed_ids(n_pages, of_sealed.table_id(sealed.id));
  std::vector<std::int32_t> protected_ids(std::max<std::size_t>(protected_pages.size(), 1));
  for (std::size_t i = 0; i < protected_pages.size(); ++i)
    protected_ids[i] = protected_rows().table_id(protected_pages[i].entry().id);
  const std::size_t mask_bytes = masks.size() * sizeof masks[0],
                    sealed_bytes = sealed_ids.size() * sizeof sealed_ids[0],
                    protected_bytes = protected_ids.size() * sizeof protected_ids[0];
  const DeviceMemory memory =
      allocate_on(device_, 2 * side_bytes + sizeof numbers + mask_bytes + sealed_bytes + protected_bytes);
  if (memory == nullptr) {
    return shortage("out of memory on {}: no room to decode a page of its layers; use fewer tokens",
                    device_.name());
  }
  char* const masks_at = memory.get() + 2 * side_bytes;
  auto* const on_device = reinterpret_cast<Numbers*>(masks_at + mask_bytes);
  auto* const sealed_at = reinterpret_cast<std::int32_t*>(on_device + 1);
  std::int32_t* const protected_at = sealed_at + sealed_ids.size();
  if (!masks.empty()) device_.upload(masks_at, masks.data(), mask_bytes);
  device_.upload(on_device, &numbers, sizeof numbers);
  device_.upload(sealed_at, sealed_ids.data(), sealed_bytes);
  device_.upload(protected_at, protected_ids.data(), protected_bytes);
  for (const int layer : layers(group)) {
    const LayerShape formats = layer_shape(plan_, layer);
    const kvant_decode_shape shape = formats.of(1, plan_);
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = &on_device->n_sealed;
    kvant_decode_layer of_layer{};
    of_layer.struct_size = sizeof of_layer;
    add_sealed(of_layer, layer);
    of_layer.sealed.table = sealed_at;
    of_layer.tail = of_tails.pages(layer);
    of_layer.tail.table = &on_device->tail_id;
    of_layer.protected_pages = protected_rows().pages(layer);
    of_layer.protected_pages.table = protected_at;
    of_layer.sink = has_sink_ && page == 0 ? plan_.layers[layer].sink : 0;
    if (!protected_pages.empty() && protects_by_score(plan_, layer)) {
      of_layer.masks = reinterpret_cast<const std::uint32_t*>(masks_at) +
                       std::ptrdiff_t{4} * n_pages * g.head_index(layer, 0);
      of_layer.mask_head_stride = n_pages;
    }
    constants().add_to(of_layer, layer);
    kvant_dequantization rows{};
    rows.struct_size = sizeof rows;
    rows.n_seqs = 1;
    rows.first_page = page;
    rows.n_pages = 1;
    rows.n_heads = g.kv_heads(layer);
    rows.keys = memory.get();
    rows.values = memory.get() + side_bytes;
    rows.token_stride = g.n_kv(layer);
    rows.head_stride = g.dim(layer);
    rows.seq_stride = rows.token_stride * kPageTokens;
    KVANT_RETURN_IF_ERROR(
        library_status(device_, "decoding a page",
                       device_.library().dequantize(&shape, &lengths, &of_layer, &rows, device_.stream())));
    kvant_new_rows back{};
    back.struct_size = sizeof back;
    back.n_rows = kPageTokens;
    back.seq = on_device->seq;
    back.tail_token = on_device->token;
    back.keys = rows.keys;
    back.values = rows.values;
    back.key_row_stride = back.value_row_stride = rows.token_stride;
    back.key_head_stride = back.value_head_stride = rows.head_stride;
    KVANT_RETURN_IF_ERROR(
        library_status(device_, "keeping a decoded page",
                       device_.library().append(&shape, &of_layer, &back, device_.stream())));
  }
  return device_.finish();
}

}  // namespace kvant
