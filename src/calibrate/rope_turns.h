// Expresses RoPE's rotations as angles. The angles serve the prediction of K (compact/predictor.h) and the
// moments of queries in a page's frame (turned_moments.h).
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "model/model_parts.h"

namespace kvant {

// Returns the rotations of each layer. If the layers of a model rotate differently, some layers may get wrong
// rotations or none. The prediction of K and its query-weighted errors are then less effective, but not
// wrong.
std::vector<std::vector<ChannelTurn>> rope_turns(const ModelParts& model, const Geometry& geometry,
                                                 int n_threads);

// Rotates a row of channels as RoPE does for n_tokens tokens. A negative number rotates backwards.
void turn_row(std::span<const ChannelTurn> turns, int n_tokens, float* row);

}  // namespace kvant
