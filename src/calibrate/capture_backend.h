// CaptureBackend wraps another backend and copies Q, K and V of every layer into a Capture. On the CPU,
// CaptureBackend copies when a layer runs. On a device, CaptureBackend copies when the device shows the rows.
#pragma once

#include "attention/attention.h"
#include "calibrate/capture.h"

namespace kvant {

class CaptureBackend final : public BackendDecorator, private RowObserver {
 public:
  // Both arguments must outlive the object.
  CaptureBackend(AttentionBackend& inner, Capture& capture) : BackendDecorator(inner), capture_(capture) {}

  // Sets the sequence of the capture to which later steps belong. Steps must have one slice, and a token's
  // index in the cache must equal its index in the sequence.
  void set_sequence(int sequence) { sequence_ = sequence; }

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  RowObserver* observer() override { return this; }

 private:
  ShownRows wants(const Step& /*step*/, int /*layer*/) override { return ShownRows::inputs; }
  void see(Step& step, int layer, const LayerRows& rows) override;
  // Keeps every n_parts-th row, from row `part` on.
  void keep(const Step& step, int layer, const LayerRows& rows, int part, int n_parts);

  Capture& capture_;
  int sequence_ = 0;
};

}  // namespace kvant
