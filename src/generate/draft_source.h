// DraftSource: proposes how a sequence goes on, for speculative decoding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

class SpeculationPace;

// Tokens that a sequence may go on with.
struct Draft {
  std::vector<std::int32_t> tokens;
  std::vector<double> odds;  // by token: the chance that it is right if all before it are
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // More of the sequence that was not generated: its prompt.
  virtual void read(std::span<const std::int32_t> tokens) = 0;
  // A token that was generated.
  virtual void generate(std::int32_t token) = 0;
  // Up to `most` tokens; none: nothing is worth its time. pace: how long steps take that verify drafts.
  virtual Draft propose(int most, const SpeculationPace& pace) = 0;
};

}  // namespace kvant
