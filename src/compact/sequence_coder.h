// SequenceCoder: losslessly compresses a sequence's bytes (Cache::export_sequence) for storage. Sealed pages
// are coded (entry_coder.h), everything else is stored as it is.
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
  // It codes sequences of this plan.
  SequenceCoder(std::shared_ptr<const Plan> plan, Predictor predictor);

  const Plan& plan() const { return *plan_; }
  std::uint64_t predictor_checksum() const { return predictor_.checksum; }

  // sequence: from a cache of the plan. Threads share the entries. Throws std::bad_alloc.
  std::vector<std::byte> encode(std::span<const std::byte> sequence, int n_threads) const;
  // Accepts any bytes. Returns the sequence that was encoded or an error, also for another predictor's bytes.
  // The error continues a message "it is damaged: ". Throws std::bad_alloc.
  Result<HugeBuffer> decode(std::span<const std::byte> coded, int n_threads) const;

 private:
  std::shared_ptr<const Plan> plan_;
  Predictor predictor_;
};

}  // namespace kvant
