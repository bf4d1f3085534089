// CaptureBackend: another backend, with Q, K and V of every layer copied into a Capture on the way.
#pragma once

#include "attention/attention.h"
#include "calibrate/capture.h"

namespace kvant {

class CaptureBackend final : public BackendDecorator {
 public:
  // Both outlive it.
  CaptureBackend(AttentionBackend& inner, Capture& capture) : BackendDecorator(inner), capture_(capture) {}

  // The capture's sequence that the next steps belong to. Steps then have one slice, and a token's index in
  // the cache is its index in that sequence.
  void set_sequence(int sequence) { sequence_ = sequence; }

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;

 private:
  Capture& capture_;
  int sequence_ = 0;
};

}  // namespace kvant
