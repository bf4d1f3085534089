// NgramDraft proposes the tokens that followed when the newest tokens occurred before in the sequence (prompt
// lookup). The chances of a draft come from records of earlier predictions with matches of about the same
// length.
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

  // Adds a text that the completion should resemble. Call expect() before read().
  void expect(std::span<const std::int32_t> tokens);
  void read(std::span<const std::int32_t> tokens) override;
  // Adds a generated token. The records count whether the index predicts the token, even if no draft was
  // used.
  void generate(std::int32_t token) override;
  // Returns an empty draft if the newest tokens have not occurred before. A lookup takes too little time for
  // `pace` to matter.
  Draft propose(int most, const SpeculationPace& pace) override;

 private:
  // Record counts the predictions after matches of one range of lengths. Newer predictions have more weight.
  struct Record {
    double right, all;
  };
  static std::size_t record_of(int length);

  NgramIndex index_;
  NgramIndex::Match match_;
  int copied_to_ = -1;  // the place after the last token that was predicted rightly; -1 if there is none
  std::array<Record, 6> records_;
};

}  // namespace kvant
