// Layers that protect tokens by their scores: rounds of attention, each followed by what it seals, and then
// prompts in blocks of rows.
#include <algorithm>

#include "attention/device_attention.h"

namespace kvant {

// The work is divided for each layer: how many tokens are protected differs between them.
bool DeviceAttention::attend_run(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                                 const RowRun& run) {
  const Plan& plan = step.plan();
  const PageLibrary& library = device_->library();
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_rows = formats.of(run.n_rows, plan);
  // Each row is a sequence of these.
  const RowTables& tables = *std::find_if(row_tables_.begin(), row_tables_.end(), [&](const RowTables& t) {
    return t.group == step.device_pages().group_of(layer) && t.first_row <= run.first_row &&
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
  with_rows.protected_pages = step.device_pages().protected_rows().pages(layer);
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
