// Constants of a checkpoint, which kvant.hf.calibrate learned while PyTorch ran it, for the GGUF file of the
// same model. GGUF files of Llama's kind keep channels that RoPE turns together side by side; checkpoints
// keep them half a head apart.
#pragma once

#include <string>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/calibration.h"

namespace kvant {

// A GGUF model that is to have them.
struct GgufModel {
  std::string fingerprint;
  const Geometry& geometry;
  std::vector<std::vector<ChannelTurn>> turns;  // RoPE's, of each layer
  bool balances_keys = false;                   // query_key_balance.h
};

// Whether the calibration is of a checkpoint: such fingerprints have two parts.
bool is_of_checkpoint(const Calibration& calibration);

// The same with the model's fingerprint, and metrics in its order of channels. That the weights are the same
// can't be told. Errors name `path`: other numbers of layers or KV heads, other turns, norms that are
// balanced, or constants that can't be reordered where the order differs.
Result<Calibration> for_gguf_model(const Calibration& calibration, const GgufModel& model,
                                   const std::string& path);

}  // namespace kvant
