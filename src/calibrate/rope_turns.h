// RoPE's turns as angles, for the prediction of K (compact/predictor.h).
#pragma once

#include <vector>

#include "compact/predictor.h"
#include "model/model_parts.h"

namespace kvant {

// Of each of the geometry's layers. Of models that turn their layers in unlike ways, layers may get turns
// that are not theirs, or none: their K is predicted less well then, nothing else.
std::vector<std::vector<ChannelTurn>> rope_turns(const ModelParts& model, const Geometry& geometry,
                                                 int n_threads);

}  // namespace kvant
