// DraftSource proposes how a sequence continues, for speculative decoding. A step then verifies the proposed
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

class SpeculationPace;

// Draft is a proposal for the next tokens of a sequence.
struct Draft {
  std::vector<std::int32_t> tokens;
  // odds[i] is the chance that tokens[i] is right if all tokens before it are right.
  std::vector<double> odds;
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // Adds tokens of the sequence that were not generated, such as its prompt.
  virtual void read(std::span<const std::int32_t> tokens) = 0;
  // Adds a generated token of the sequence.
  virtual void generate(std::int32_t token) = 0;
  // Proposes up to `most` tokens, or none if drafting does not pay. `pace` holds the measured times of steps
  // that verify drafts.
  virtual Draft propose(int most, const SpeculationPace& pace) = 0;
};

}  // namespace kvant
