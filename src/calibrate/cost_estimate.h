// Estimates the time and memory of a calibration on this machine before it begins. The user sees the estimate
// before a long calibration starts.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "calibrate/read_samples.h"
#include "model/hparams.h"

namespace kvant {

struct CalibrationWork {
  std::int64_t tokens = 0;      // tokens that the model reads
  int contexts = 0;             // contexts that the CPU differentiates
  int context_tokens = 0;       // tokens of each context
  int formats = 0;              // formats in which K and V of contexts are encoded
  std::int64_t file_bytes = 0;  // the size of the model's file, which gradients read completely
};

struct CalibrationCost {
  double seconds = 0;
  std::int64_t bytes = 0;  // the process takes at most this much memory
};

// Returns a rough count of multiplications. If bfloat16 is twice as fast as F32, an F32 multiplication counts
// twice.
double multiplications(const Hparams& hparams, const CalibrationWork& work);

// Extrapolates from the present speed of a few tokens and of products of the model's size. The time of
// learners that work on samples is unknown and not included. Returns the engine's errors.
Result<CalibrationCost> estimated_cost(const SampleReader& reader, const Hparams& hparams,
                                       const CalibrationWork& work, int n_threads);

// Returns the cost as a text, such as "about 4 min and at most 3.6 GiB of memory".
std::string readable_cost(const CalibrationCost& cost);

}  // namespace kvant
