#include "calibrate/capture_backend.h"

#include "base/check.h"

namespace kvant {

void CaptureBackend::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  team.barrier();  // other threads may have computed the rows
  keep(step, layer, rows, team.index(), team.size());
  inner().run_layer(step, layer, rows, team);
}

void CaptureBackend::see(Step& step, int layer, const LayerRows& rows) {
  keep(step, layer, rows, 0, 1);
}

void CaptureBackend::keep(const Step& step, int layer, const LayerRows& rows, int part, int n_parts) {
  KVANT_CHECK(step.slices().size() == 1, "captured sequences run one by one");
  const Geometry& g = capture_.geometry();
  const int d = g.dim(layer);
  for (int r = part; r < rows.k.rows; r += n_parts) {
    const int token = step.first_token(0) + r;
    if (!capture_.keeps(sequence_, token)) continue;
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      capture_.store(sequence_, token, layer, h, Side::key, rows.k.row(r) + h * d);
      capture_.store(sequence_, token, layer, h, Side::value, rows.v.row(r) + h * d);
    }
    for (int h = 0; h < g.n_heads; ++h)
      capture_.store_query(sequence_, token, layer, h, rows.q.row(r) + h * d);
  }
}

}  // namespace kvant
