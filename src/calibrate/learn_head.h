// Learns the constants of one side of a head from captured values. The learners know nothing of recipes,
// because the needs (needs.h) say which constants to learn from which values.
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

class AdapterDevice;

// LearnedConstants holds constants by scoped name. For each codebook, "<name>#errors" holds the three errors
// of struct Codebook. For each head's adapters, "<name of the queries' map>#losses" holds the losses of
// TrainedAdapters. If adapters do not help their head, their constant is a single 0 (switched_off()).
using LearnedConstants = std::vector<std::pair<std::string, std::vector<float>>>;

// Learns all constants that `needs` lists from the capture's rows. The constants of each transform are
// learned first, from the rows after all earlier transforms. The constants of the formats are learned last,
// from the rows after all transforms. The result is deterministic for settings.seed, and does not depend on
// what else is learned. `turns` are RoPE's rotations in the head's layer. Returns an error if a transform
// rejects the rows, because values are not finite. If `device` is not null, it trains adapters.
Result<LearnedConstants> learn_head(const Capture& capture, const HeadNeeds& needs,
                                    std::span<const ChannelTurn> turns, const CalibrationSettings& settings,
                                    AdapterDevice* device = nullptr);

inline constexpr const char* kErrorsSuffix = "#errors";
inline constexpr const char* kLossesSuffix = "#losses";

}  // namespace kvant
