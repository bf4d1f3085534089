// SequenceCoder: a sequence's bytes (Cache::export_sequence) in fewer, for storage; nothing is lost. Sealed
// pages are coded (entry_coder.h), everything else is stored as it is.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/huge_buffer.h"
#include "base/result.h"
#include "compact/predictor.h"
#include "recipe/plan.h"

namespace kvant {

class SequenceCoder {
 public:
  // Of sequences of this plan.
  SequenceCoder(std::shared_ptr<const Plan> plan, Predictor predictor);

  const Plan& plan() const { return *plan_; }
  std::uint64_t predictor_checksum() const { return predictor_.checksum; }

  // Threads share the entries. Throws std::bad_alloc. sequence: of a cache of the plan.
  std::vector<std::byte> encode(std::span<const std::byte> sequence, int n_threads) const;
  // Whatever the bytes are: the sequence that was encoded, or an error, which goes on after "it is damaged: "
  // in a message; of another predictor's: so, too. Throws std::bad_alloc.
  Result<HugeBuffer> decode(std::span<const std::byte> coded, int n_threads) const;

 private:
  std::shared_ptr<const Plan> plan_;
  Predictor predictor_;
};

}  // namespace kvant
