// DraftSource: proposes the continuation of a sequence for speculative decoding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

class SpeculationPace;

// Proposed next tokens of a sequence.
struct Draft {
  std::vector<std::int32_t> tokens;
  std::vector<double> odds;  // by token: the chance that it is right if all before it are
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // Adds tokens of the sequence that were not generated: its prompt.
  virtual void read(std::span<const std::int32_t> tokens) = 0;
  // Adds a generated token.
  virtual void generate(std::int32_t token) = 0;
  // Proposes up to `most` tokens, or none if drafting is not worth its time. pace: how long steps that verify
  // drafts take.
  virtual Draft propose(int most, const SpeculationPace& pace) = 0;
};

}  // namespace kvant
