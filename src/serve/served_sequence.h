// ServedSequence: a sequence of the cache, and what the server has it for.
#pragma once

#include <cstdint>
#include <string>

#include "cache/sequence_view.h"
#include "serve/job.h"

namespace kvant {

struct ServedSequence {
  SequenceId id = 0;
  SequenceView held;
  std::int64_t request = 0;  // that runs on it; 0: none, it is kept for those to come
  std::string session;       // whose it is; empty: nobody's
  // Of a request:
  JobState state = JobState::waiting;
  int answer = 0;  // its number among the request's
  TokenUsage usage;
};

}  // namespace kvant
