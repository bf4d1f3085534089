// Converts constants that kvant.hf.calibrate learned from a checkpoint in PyTorch, for the GGUF file of the
// same model. GGUF files of the Llama family store the two channels of a RoPE pair side by side. Checkpoints
// store the two channels half a head apart.
#pragma once

#include <string>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/calibration.h"

namespace kvant {

// GgufModel describes the GGUF model that is to use the constants.
struct GgufModel {
  std::string fingerprint;
  const Geometry& geometry;
  std::vector<std::vector<ChannelTurn>> turns;  // RoPE's rotations in each layer
  bool balances_keys = false;                   // the engine balances the norms of queries and keys
                                                // (query_key_balance.h)
};

// Returns whether the calibration was made from a checkpoint. The fingerprint then has two parts.
bool is_of_checkpoint(const Calibration& calibration);

// Returns the calibration with the model's fingerprint, and with metrics in the model's order of channels.
// The function cannot check whether the weights are the same. Returns an error, which names `path`, for
// different numbers of layers or KV heads, different rotations, balanced norms, and constants that cannot be
// reordered.
Result<Calibration> for_gguf_model(const Calibration& calibration, const GgufModel& model,
                                   const std::string& path);

}  // namespace kvant
