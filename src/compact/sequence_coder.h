// SequenceCoder compresses the bytes of a sequence (Cache::export_sequence) without loss, for storage. Sealed
// pages are coded (entry_coder.h), and everything else is stored unchanged.
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
  // The coder accepts only sequences of `plan`.
  SequenceCoder(std::shared_ptr<const Plan> plan, Predictor predictor);

  const Plan& plan() const { return *plan_; }
  std::uint64_t predictor_checksum() const { return predictor_.checksum; }

  // `sequence` comes from a cache of the plan. Threads share the entries. Throws std::bad_alloc.
  std::vector<std::byte> encode(std::span<const std::byte> sequence, int n_threads) const;
  // Accepts any bytes. Returns the sequence that was encoded, or an error if the bytes are damaged or belong
  // to a different predictor. The error continues a message "it is damaged: ". Throws std::bad_alloc.
  Result<HugeBuffer> decode(std::span<const std::byte> coded, int n_threads) const;

 private:
  std::shared_ptr<const Plan> plan_;
  Predictor predictor_;
};

}  // namespace kvant
