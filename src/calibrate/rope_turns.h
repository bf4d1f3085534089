// RoPE's turns as angles: for the prediction of K (compact/predictor.h), and for moments of queries as the
// pages that they read see them (turned_moments.h).
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "model/model_parts.h"

namespace kvant {

// Of each of the geometry's layers. Of models that turn their layers in unlike ways, layers may get turns
// that are not theirs, or none: their K is predicted less well then, or its errors shaped less well, nothing
// else.
std::vector<std::vector<ChannelTurn>> rope_turns(const ModelParts& model, const Geometry& geometry,
                                                 int n_threads);

// Turns a row of channels as RoPE does for so many tokens; back, where they are negative.
void turn_row(std::span<const ChannelTurn> turns, int n_tokens, float* row);

}  // namespace kvant
