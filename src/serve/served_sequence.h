// ServedSequence describes a sequence of the cache and its purpose. GET /cache shows sequences in this form.
#pragma once

#include <cstdint>
#include <string>

#include "cache/sequence_view.h"
#include "serve/job.h"

namespace kvant {

struct ServedSequence {
  SequenceId id = 0;
  SequenceView held;
  std::int64_t request = 0;  // the id of the request that uses the sequence; 0 if it is kept for later
                             // requests
  std::string session;       // the session that owns the sequence; empty if none does
  // The members `state`, `answer` and `usage` are valid only if `request` is not 0.
  JobState state = JobState::waiting;
  int answer = 0;
  TokenUsage usage;
};

}  // namespace kvant
