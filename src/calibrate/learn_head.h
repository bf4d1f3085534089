// Learns the constants of one head's side from captured values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/channel_turn.h"
#include "base/result.h"
#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "calibrate/needs.h"

namespace kvant {

// Constants by scoped name. Beside each codebook comes "<name>#errors": the three errors of struct Codebook;
// beside each head's adapters "<name of the query's>#losses": the losses of TrainedAdapters. Adapters that
// don't help their head are a single 0: see switched_off().
using LearnedConstants = std::vector<std::pair<std::string, std::vector<float>>>;

// All that `needs` lists, learned on the capture's rows, in order: each step's constants on what the steps
// before it leave, then the formats' on what all of them leave. Deterministic for a seed (settings.seed), and
// independent of what else is learned. turns: RoPE's in the head's layer. An error when the rows don't suffer
// a transform (values that are not finite).
Result<LearnedConstants> learn_head(const Capture& capture, const HeadNeeds& needs,
                                    std::span<const ChannelTurn> turns, const CalibrationSettings& settings);

inline constexpr const char* kErrorsSuffix = "#errors";
inline constexpr const char* kLossesSuffix = "#losses";

}  // namespace kvant
