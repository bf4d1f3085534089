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

// Constants by scoped name. Each codebook is accompanied by "<name>#errors", the three errors of struct
// Codebook. Each head's adapters are accompanied by "<name of the query's>#losses", the losses of
// TrainedAdapters. Adapters that don't help their head are a single 0: see switched_off().
using LearnedConstants = std::vector<std::pair<std::string, std::vector<float>>>;

// Learns everything that `needs` lists on the capture's rows, in order: each step's constants on the output
// of the steps before it, then the formats' on the output of all steps. Deterministic for a seed
// (settings.seed), and independent of what else is learned. turns: RoPE's rotations in the head's layer.
// Returns an error if a transform rejects the rows (values that are not finite).
Result<LearnedConstants> learn_head(const Capture& capture, const HeadNeeds& needs,
                                    std::span<const ChannelTurn> turns, const CalibrationSettings& settings);

inline constexpr const char* kErrorsSuffix = "#errors";
inline constexpr const char* kLossesSuffix = "#losses";

}  // namespace kvant
