// Rows of a step that are each a sequence of its own to the library's decode kernel: running answers, and
// slices of prompts that the prompt kernel doesn't take.
#include <algorithm>

#include "attention/device_attention.h"

namespace kvant {

void DeviceAttention::list_rows(const Step& step, const RowRun& run) {
  const std::size_t first = row_tables_.size();
  for (const LayerPlan& layer : step.plan().layers) {
    const bool listed =
        std::any_of(row_tables_.begin() + static_cast<std::ptrdiff_t>(first), row_tables_.end(),
                    [&](const RowTables& t) { return t.sliding_window == layer.sliding_window; });
    if (!listed) row_tables_.push_back(list_row_tables(step, run, layer.sliding_window, slices_, indices_));
  }
}

// Of so many rows in the layers of one sliding window: as much as the layer that needs most. Steps mostly
// have the plan and the numbers of rows of those before.
Result<std::size_t> DeviceAttention::workspace_of(const Plan& plan, int n_rows) {
  if (const auto found = workspace_of_rows_.find(n_rows); found != workspace_of_rows_.end())
    return found->second;
  constexpr std::size_t kWorkspaceAlignment = 256;
  std::size_t most = 0;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const LayerShape formats = layer_shape(plan, layer);
    const kvant_decode_shape shape = formats.of(n_rows, plan);
    std::size_t bytes = 0;
    KVANT_RETURN_IF_ERROR(library_status(*device_, "dividing a step's work",
                                         device_->library().decode_workspace(&shape, &bytes)));
    most = std::max(most, bytes);
  }
  most = (most + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  workspace_of_rows_[n_rows] = most;
  return most;
}

// Each table's division of work has its place throughout the step.
Status DeviceAttention::place_rows(const Plan& plan) {
  rows_workspace_ = 0;
  for (RowTables& tables : row_tables_) {
    const auto bytes = workspace_of(plan, tables.n_rows);
    if (!bytes.ok()) return bytes.error();
    tables.workspace = rows_workspace_;
    tables.workspace_bytes = *bytes;
    rows_workspace_ += *bytes;
  }
  return {};
}

Status DeviceAttention::divide_rows(const Plan& plan) {
  const LayerShape formats = layer_shape(plan, 0);
  for (const RowTables& tables : row_tables_) {
    if (tables.sliding_window == 0 && protects_by_score(plan)) continue;  // divided in each layer
    const kvant_decode_shape shape = formats.of(tables.n_rows, plan);
    const kvant_decode_lengths lengths = tables.lengths(indices_, tables.first_row);
    KVANT_RETURN_IF_ERROR(library_status(
        *device_, "dividing a step's work",
        device_->library().decode_schedule(&shape, &lengths, workspace_.memory() + tables.workspace,
                                           tables.workspace_bytes, device_->stream())));
  }
  return {};
}

void DeviceAttention::point_to_rows(kvant_decode_layer& at_layer, const DeviceRows& rows,
                                    const RowTables& tables, const Geometry& g, int from_row) const {
  const std::int64_t stride = std::int64_t{g.n_heads} * g.head_dim;
  tables.add_to(at_layer, indices_, from_row);
  at_layer.q = rows.q + from_row * stride;
  at_layer.q_type = KVANT_F32;
  at_layer.out = rows.out + from_row * stride;
  at_layer.out_type = KVANT_F32;
  at_layer.q_seq_stride = at_layer.out_seq_stride = stride;
  at_layer.q_head_stride = at_layer.out_head_stride = g.head_dim;
  at_layer.reproducible = 1;
  if (rows.value_transform.hadamard) {
    at_layer.out_hadamard = 1;
    at_layer.out_factors = rows.value_transform.inverses;
  }
}

bool DeviceAttention::attend_rows(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                                  const RowTables& tables) {
  const Plan& plan = step.plan();
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_rows = formats.of(tables.n_rows, plan);
  point_to_rows(at_layer, rows, tables, plan.geometry, tables.first_row);
  at_layer.settled = max_due_ == 0 ? 1 : 0;  // then nothing but appending and attention precedes
  kvant_correction correction{};
  if (is_corrected(plan, layer)) {
    correction = sums_.of_rows(step, layer, indices_, tables.first_row);
    at_layer.correction = &correction;
  }
  const kvant_decode_lengths lengths = tables.lengths(indices_, tables.first_row);
  return check(step, "attending",
               device_->library().decode_attention(&of_rows, &lengths, &at_layer,
                                                   workspace_.memory() + tables.workspace,
                                                   tables.workspace_bytes, device_->stream()));
}

}  // namespace kvant
