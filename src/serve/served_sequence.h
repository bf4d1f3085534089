// ServedSequence describes a sequence of the cache and its purpose.
#pragma once

#include <cstdint>
#include <string>

#include "cache/sequence_view.h"
#include "serve/job.h"

namespace kvant {

struct ServedSequence {
  SequenceId id = 0;
  SequenceView held;
  std::int64_t request = 0;  // the request that runs on it; 0: it is kept for later requests
  std::string session;       // the session that owns it; empty: none
  // These members are for requests.
  JobState state = JobState::waiting;
  int answer = 0;  // number of the completion within the request
  TokenUsage usage;
};

}  // namespace kvant
