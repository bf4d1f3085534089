// RoPE's rotations as angles, for the prediction of K (compact/predictor.h) and for moments of queries in the
// frame of a page (turned_moments.h).
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "model/model_parts.h"

namespace kvant {

// Returns the rotations of each layer. If a model's layers rotate differently, some layers may get wrong
// rotations or none. This only makes the prediction of K, or the shaping of its errors, less effective.
std::vector<std::vector<ChannelTurn>> rope_turns(const ModelParts& model, const Geometry& geometry,
                                                 int n_threads);

// Rotates a row of channels as RoPE does for n_tokens tokens, backwards if negative.
void turn_row(std::span<const ChannelTurn> turns, int n_tokens, float* row);

}  // namespace kvant
