// NgramDraft: proposes how a sequence goes on: as it did where its newest tokens occurred before.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/ngram_index.h"

namespace kvant {

// Tokens that a sequence may go on with.
struct Draft {
  std::vector<std::int32_t> tokens;
  std::vector<double> odds;  // by token: the chance that it is right if all before it are
};

class NgramDraft {
 public:
  NgramDraft();

  // A text that the completion is expected to resemble. Before read().
  void expect(std::span<const std::int32_t> tokens);
  // More of the sequence that was not generated: its prompt.
  void read(std::span<const std::int32_t> tokens);
  // A token that was generated. The chances follow how often the index would have been right, whether its
  // draft was used or not.
  void generate(std::int32_t token);

  // Up to `most` tokens; none: the newest ones have not occurred before.
  Draft propose(int most) const;

 private:
  // Predictions of the next token behind matches of one range of lengths. Old ones fade.
  struct Record {
    double right, all;
  };
  static std::size_t record_of(int length);

  NgramIndex index_;
  NgramIndex::Match match_;  // of the newest tokens
  int copied_to_ = -1;       // behind the last place whose token was right; -1: there was none
  std::array<Record, 6> records_;
};

}  // namespace kvant
