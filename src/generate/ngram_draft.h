// NgramDraft: proposes the tokens that followed the newest tokens where these occurred before (prompt
// lookup).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "generate/draft_source.h"
#include "generate/ngram_index.h"

namespace kvant {

class NgramDraft : public DraftSource {
 public:
  NgramDraft();

  // Adds a text that the completion is expected to resemble. Must be called before read().
  void expect(std::span<const std::int32_t> tokens);
  void read(std::span<const std::int32_t> tokens) override;
  // Updates the chances by whether the index would have been right, even if its draft was not used.
  void generate(std::int32_t token) override;
  // Returns an empty draft if the newest tokens have not occurred before. A lookup takes too little time for
  // the pace to matter.
  Draft propose(int most, const SpeculationPace& pace) override;

 private:
  // Counts of predictions after matches of one range of lengths; old ones fade.
  struct Record {
    double right, all;
  };
  static std::size_t record_of(int length);

  NgramIndex index_;
  NgramIndex::Match match_;  // match of the newest tokens
  int copied_to_ = -1;       // place after the last one whose token was right; -1: there was none
  std::array<Record, 6> records_;
};

}  // namespace kvant
