#include "attention/device_sums.h"

#include <algorithm>

#include "attention/device_row_tables.h"
#include "base/linear_correction.h"
#include "cache/device_constants.h"

namespace kvant {
namespace {

// Returns the bytes of the sums of all heads of a layer.
std::size_t layer_sums_bytes(const Plan& plan) {
  return static_cast<std::size_t>(correction_bytes(plan.geometry.head_dim)) * plan.geometry.n_kv_heads;
}

}  // namespace

Status DeviceSums::begin(const Step& step, IndexBuffer& indices) {
  DevicePageStore& store = device_pages(step);
  const int n_slices = static_cast<int>(step.slices().size());
  first_sums_.clear();
  due_.clear();
  max_due_ = 0;
  int n_sums = 0;
  for (int s = 0; s < n_slices; ++s) {
    due_.push_back(step.ledger(s, /*layer=*/0).end_sealed() - step.ledger(s, /*layer=*/0).n_sealed());
    max_due_ = std::max(max_due_, due_.back());
    first_sums_.push_back(n_sums);
    n_sums += due_.back() + 1;
  }
  std::vector<std::int32_t> of_rows;
  for (int s = 0; s < n_slices; ++s) {
    const int n_sealed = step.ledger(s, /*layer=*/0).n_sealed(),
              id = store.sums().table_id(DeviceSequence::entry_of(device_sequence(step, s).sums()).id);
    for (const VisibleTokens& visible : visible_tokens(step, s, /*layer=*/0))
      of_rows.push_back(max_due_ > 0 ? first_sums_[s] + visible.sealed_pages - n_sealed : id);
  }
  row_sums_ = indices.add(of_rows);
  slice_sums_ = indices.add(first_sums_);
  return buffer_.reserve(max_due_ > 0 ? n_sums * layer_sums_bytes(step.plan()) : 0,
                         "for the sums of its correction");
}

char* DeviceSums::in_store(const Step& step, int layer, const std::shared_ptr<SequenceNumbers>& sums) {
  const DeviceEntryTable& all = device_pages(step).sums();
  return all.data(DeviceSequence::entry_of(sums).id) + all.layout().layers[layer].offset;
}

char* DeviceSums::after(const Step& step, int slice, int n_pages) const {
  return buffer_.memory() + (first_sums_[slice] + n_pages) * layer_sums_bytes(step.plan());
}

kvant_correction DeviceSums::of_rows(const Step& step, int layer, const IndexBuffer& indices,
                                     int from_row) const {
  const Plan& plan = step.plan();
  const DeviceEntryTable& all = device_pages(step).sums();
  kvant_correction correction{};
  correction.struct_size = sizeof correction;
  correction.query_maps = device_pages(step).constants().query_maps(layer);
  correction.states = reinterpret_cast<float*>(buffer_.memory());
  correction.state_seq_stride = static_cast<std::int64_t>(layer_sums_bytes(plan) / sizeof(float));
  if (max_due_ == 0) {  // The store's sums are addressed like pages, in units of kDeviceUnit bytes.
    correction.states = reinterpret_cast<float*>(all.base() + all.layout().layers[layer].offset);
    correction.state_seq_stride = kDeviceUnit / sizeof(float);
  }
  correction.state_head_stride = correction_bytes(plan.geometry.head_dim) / std::int64_t{sizeof(float)};
  correction.state_of_seq = indices.at(row_sums_.from(from_row));
  correction.absolute = plan.recipe.correction == Correction::absolute ? 1 : 0;
  return correction;
}

kvant_status DeviceSums::seal(const Step& step, int layer, const kvant_decode_shape& of_slices,
                              const kvant_decode_layer& at_layer, const kvant_seal_range& range,
                              const IndexBuffer& indices) {
  const Plan& plan = step.plan();
  const int n_slices = static_cast<int>(due_.size());
  const std::size_t bytes = layer_sums_bytes(plan);
  const auto head_bytes = static_cast<std::size_t>(correction_bytes(plan.geometry.head_dim));
  for (int s = 0; s < n_slices; ++s)
    device_->copy(after(step, s, 0), in_store(step, layer, device_sequence(step, s).sums()), bytes);
  kvant_correction correction = of_rows(step, layer, indices, /*from_row=*/0);
  correction.key_maps = device_pages(step).constants().key_maps(layer);
  correction.state_of_seq = indices.at(slice_sums_);
  correction.state_page_stride = correction.state_seq_stride;
  kvant_decode_layer corrected = at_layer;
  corrected.correction = &correction;
  const kvant_status sealed =
      device_->library().seal_pages(&of_slices, &corrected, &range, device_->stream());
  if (sealed != KVANT_OK) return sealed;
  for (int s = 0; s < n_slices; ++s) {
    if (due_[s] == 0) continue;
    for (int h = 0; h < plan.geometry.n_kv_heads; ++h) {
      // The library adds up sums for every head. The sums of a head without a correction must be zero.
      if (!plan.head(layer, h).corrected)
        device_->clear_rows(after(step, s, 1) + h * head_bytes, bytes, head_bytes,
                            static_cast<std::size_t>(due_[s]));
    }
    device_->copy(in_store(step, layer, device_sequence(step, s).next_sums()), after(step, s, due_[s]),
                  bytes);
  }
  return KVANT_OK;
}

}  // namespace kvant
