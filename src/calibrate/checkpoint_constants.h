// Converts constants of a checkpoint, which kvant.hf.calibrate learned in PyTorch, for the GGUF file of the
// same model. GGUF files of the Llama family store the two channels of a RoPE pair side by side; checkpoints
// store them half a head apart.
#pragma once

#include <string>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/calibration.h"

namespace kvant {

// The GGUF model that is to use the constants.
struct GgufModel {
  std::string fingerprint;
  const Geometry& geometry;
  std::vector<std::vector<ChannelTurn>> turns;  // RoPE's rotations of each layer
  bool balances_keys = false;                   // query_key_balance.h
};

// Whether the calibration is of a checkpoint: their fingerprints have two parts.
bool is_of_checkpoint(const Calibration& calibration);

// Returns the calibration with the model's fingerprint, and with metrics in its order of channels. Whether
// the weights are the same can't be checked. Errors name `path`: different numbers of layers or KV heads,
// different rotations, balanced norms, or constants that can't be reordered.
Result<Calibration> for_gguf_model(const Calibration& calibration, const GgufModel& model,
                                   const std::string& path);

}  // namespace kvant
