// Attends with rows that the library's decode kernel takes as sequences. Each running completion is a
// sequence of its own. Rows of a slice that the prompt kernel does not take go several at a time.
#include <algorithm>

#include "attention/device_attention.h"

namespace kvant {

// A correction's sums and the protected tokens of a layer are found by row, so such rows attend alone.
// Kernels for heads of 256 divide the tokens of a page among warps, so most joint rows would get the generic
// kernel.
bool DeviceAttention::takes_rows_together(const Plan& plan, const StepSlice& slice) const {
  constexpr int kLargestHead = 128;
  return slice.n_tokens > 1 && plan.geometry.head_dim <= kLargestHead && !is_corrected(plan) &&
         !protects_by_score(plan);
}

void DeviceAttention::list_rows(const Step& step, const RowRun& run) {
  // kvant_decode_shape limits the queries of a sequence to 8. With heads of 128, up to four warps share the
  // decoding of a page, so the limit is the columns of four warps. Other heads have the columns of two warps
  // as their limit, because instructions limit these kernels. Two calls with two warps each take less time
  // there than one call with four warps.
  constexpr int kMostTogether = 8, kColumnsOfHeads = 8;
  const int most_columns = step.plan().geometry.head_dim == 128 ? 32 : 16;
  const bool are_together = takes_rows_together(step.plan(), step.slices()[run.first_slice]);
  for (const GroupTables& group : groups_) {
    const int columns = std::min(step.plan().geometry.group(group.slices.layer), kColumnsOfHeads);
    const int together = are_together ? std::min(kMostTogether, most_columns / columns) : 1;
    row_tables_.push_back(list_row_tables(step, run, together, group.slices, indices_));
  }
}

// Returns the bytes for the layer that needs most. Most steps have the plan and the number of sequences
// of the previous step, so sizes are kept.
Result<std::size_t> DeviceAttention::workspace_of(const Plan& plan, const RowTables& tables) {
  const std::pair key(tables.n_seqs, tables.max_queries);
  if (const auto found = workspace_of_rows_.find(key); found != workspace_of_rows_.end())
    return found->second;
  constexpr std::size_t kWorkspaceAlignment = 256;
  std::size_t most = 0;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const LayerShape formats = layer_shape(plan, layer);
    const kvant_decode_shape shape = tables.shape(formats, plan);
    std::size_t bytes = 0;
    KVANT_RETURN_IF_ERROR(library_status(*device_, "dividing a step's work",
                                         device_->library().decode_workspace(&shape, &bytes)));
    most = std::max(most, bytes);
  }
  most = (most + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  workspace_of_rows_[key] = most;
  return most;
}

// The division of work of each table keeps its place throughout the step.
Status DeviceAttention::place_rows(const Plan& plan) {
  rows_workspace_ = 0;
  for (RowTables& tables : row_tables_) {
    const auto bytes = workspace_of(plan, tables);
    if (!bytes.ok()) return bytes.error();
    tables.workspace = rows_workspace_;
    tables.workspace_bytes = *bytes;
    rows_workspace_ += *bytes;
  }
  return {};
}

Status DeviceAttention::divide_rows(const Plan& plan) {
  for (const RowTables& tables : row_tables_) {
    // Layers that protect by score divide the work themselves.
    if (tables.sliding_window == 0 && protects_by_score(plan)) continue;
    const LayerShape formats = layer_shape(plan, groups_[tables.group].slices.layer);
    const kvant_decode_shape shape = tables.shape(formats, plan);
    const kvant_decode_lengths lengths = tables.lengths(indices_, tables.first_row);
    KVANT_RETURN_IF_ERROR(library_status(
        *device_, "dividing a step's work",
        device_->library().decode_schedule(&shape, &lengths, workspace_.memory() + tables.workspace,
                                           tables.workspace_bytes, device_->stream())));
  }
  return {};
}

void DeviceAttention::point_to_rows(kvant_decode_layer& at_layer, int layer, const DeviceRows& rows,
                                    const RowTables& tables, const Geometry& g, int from_row) const {
  const std::int64_t stride = g.n_q(layer);
  tables.add_to(at_layer, indices_, from_row);
  at_layer.q = rows.q + from_row * stride;
  at_layer.q_type = KVANT_F32;
  at_layer.out = rows.out + from_row * stride;
  at_layer.out_type = KVANT_F32;
  at_layer.q_seq_stride = at_layer.out_seq_stride = stride;
  at_layer.q_head_stride = at_layer.out_head_stride = g.dim(layer);
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
  const kvant_decode_shape of_rows = tables.shape(formats, plan);
  point_to_rows(at_layer, layer, rows, tables, plan.geometry, tables.first_row);
  // In a step that seals nothing, only appending and attention precede the layer's attention.
  at_layer.settled = max_due_ == 0 ? 1 : 0;
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

// Layers that protect tokens by scores attend in rounds, and pages are sealed after each round. Prompts in
// blocks of rows attend after all rounds.

// The work is divided for each layer, because layers differ in their number of protected tokens.
bool DeviceAttention::attend_run(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                                 const RowRun& run) {
  const Plan& plan = step.plan();
  const PageLibrary& library = device_->library();
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_rows = formats.of(run.n_rows, plan);
  // Each row is one sequence of these tables.
  const RowTables& tables = *std::find_if(row_tables_.begin(), row_tables_.end(), [&](const RowTables& t) {
    return t.group == device_pages(step).group_of(layer) && t.first_row <= run.first_row &&
           run.first_row < t.first_row + t.n_seqs;
  });
  char* const workspace = workspace_.memory() + tables.workspace;
  point_to_rows(at_layer, layer, rows, tables, plan.geometry, run.first_row);
  kvant_decode_lengths lengths = tables.lengths(indices_, run.first_row);
  protector_.add_to(at_layer, lengths, layer, run);
  return check(step, "dividing a step's work",
               library.decode_schedule(&of_rows, &lengths, workspace, tables.workspace_bytes,
                                       device_->stream())) &&
         check(step, "attending",
               library.decode_attention(&of_rows, &lengths, &at_layer, workspace, tables.workspace_bytes,
                                        device_->stream()));
}

bool DeviceAttention::attend_and_protect(Step& step, int layer, const DeviceRows& rows,
                                         const kvant_decode_layer& at_layer) {
  kvant_decode_layer with_rows = at_layer;
  with_rows.protected_pages = device_pages(step).protected_rows().pages(layer);
  for (const ProtectionRound& round : protector_.rounds()) {
    for (const RowRun& run : round.runs) {
      if (!attend_run(step, layer, rows, with_rows, run)) return false;
    }
    for (const SealPoint& point : round.then) {
      if (!protector_.seal(step, layer, point, with_rows, rows.q)) return false;
    }
  }
  protector_.add_slices_to(with_rows, layer);
  if (!attend_prompts(step, layer, rows, with_rows)) return false;
  protector_.keep_observers(step, layer, rows.q);
  return true;
}

}  // namespace kvant
