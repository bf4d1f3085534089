// Learns the constants of one side of a head from captured values. The learners know nothing of recipes: the
// needs (needs.h) say which constants to learn from which values.
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

// LearnedConstants holds constants by scoped name. Each codebook is accompanied by "<name>#errors", the three
// errors of struct Codebook. Each head's adapters are accompanied by "<name of the queries' map>#losses", the
// losses of TrainedAdapters. If adapters do not help their head, their constant is a single 0
// (switched_off()).
using LearnedConstants = std::vector<std::pair<std::string, std::vector<float>>>;

// Learns everything that `needs` lists from the capture's rows. First come the constants of each transform,
// learned from the rows after all earlier transforms. Then come the constants of the formats, learned from
// the rows after all transforms. The result is deterministic for settings.seed, and does not depend on what
// else is learned. `turns` are RoPE's rotations in the head's layer. Returns an error if a transform rejects
// the rows, because values are not finite.
Result<LearnedConstants> learn_head(const Capture& capture, const HeadNeeds& needs,
                                    std::span<const ChannelTurn> turns, const CalibrationSettings& settings);

inline constexpr const char* kErrorsSuffix = "#errors";
inline constexpr const char* kLossesSuffix = "#losses";

}  // namespace kvant
