#include "calibrate/capture_backend.h"

#include "base/check.h"

namespace kvant {

void CaptureBackend::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  KVANT_CHECK(step.slices().size() == 1, "captured sequences run one by one");
  team.barrier();  // rows may be other threads' work
  const Geometry& g = capture_.geometry();
  const int d = g.dim(layer);
  for (int r = team.index(); r < rows.k.rows; r += team.size()) {
    const int token = step.first_token(0) + r;
    if (!capture_.keeps(sequence_, token)) continue;
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      capture_.store(sequence_, token, layer, h, Side::key, rows.k.row(r) + h * d);
      capture_.store(sequence_, token, layer, h, Side::value, rows.v.row(r) + h * d);
    }
    for (int h = 0; h < g.n_heads; ++h)
      capture_.store_query(sequence_, token, layer, h, rows.q.row(r) + h * d);
  }
  inner().run_layer(step, layer, rows, team);
}

}  // namespace kvant
