// What a calibration will take on this machine: said before it begins.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "calibrate/read_samples.h"
#include "model/hparams.h"

namespace kvant {

struct CalibrationWork {
  std::int64_t tokens = 0;      // that the model runs
  int contexts = 0;             // of kQueryTokens, that are differentiated on the CPU
  int context_tokens = 0;       // of each
  int formats = 0;              // that K and V of contexts are encoded in
  std::int64_t file_bytes = 0;  // of the model, all of which is read to differentiate
};

struct CalibrationCost {
  double seconds = 0;
  std::int64_t bytes = 0;  // of the process, at most
};

// Multiplications of all that, roughly: those of F32 that count twice where bfloat16 is twice as fast, too.
double multiplications(const Hparams& hparams, const CalibrationWork& work);

// From the time that a few tokens and products of the model's size take now. What learners take beside that,
// who work from samples, isn't known. Errors: the engine's.
Result<CalibrationCost> estimated_cost(const SampleReader& reader, const Hparams& hparams,
                                       const CalibrationWork& work, int n_threads);

// As "about 4 min and at most 3.6 GiB of memory".
std::string readable_cost(const CalibrationCost& cost);

}  // namespace kvant
