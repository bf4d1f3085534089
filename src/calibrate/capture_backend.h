// CaptureBackend: another backend, with Q, K and V of every layer copied into a Capture on the way, be it
// called or, on a device, shown the rows.
#pragma once

#include "attention/attention.h"
#include "calibrate/capture.h"

namespace kvant {

class CaptureBackend final : public BackendDecorator, private RowObserver {
 public:
  // Both outlive it.
  CaptureBackend(AttentionBackend& inner, Capture& capture) : BackendDecorator(inner), capture_(capture) {}

  // The capture's sequence that the next steps belong to. Steps then have one slice, and a token's index in
  // the cache is its index in that sequence.
  void set_sequence(int sequence) { sequence_ = sequence; }

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  RowObserver* observer() override { return this; }

 private:
  ShownRows wants(const Step& /*step*/, int /*layer*/) override { return ShownRows::inputs; }
  void see(Step& step, int layer, const LayerRows& rows) override;
  // Rows part, part + n_parts, ...
  void keep(const Step& step, int layer, const LayerRows& rows, int part, int n_parts);

  Capture& capture_;
  int sequence_ = 0;
};

}  // namespace kvant
