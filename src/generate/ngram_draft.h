// NgramDraft: proposes how a sequence goes on: as it did where its newest tokens occurred before.
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

  // A text that the completion is expected to resemble. Before read().
  void expect(std::span<const std::int32_t> tokens);
  void read(std::span<const std::int32_t> tokens) override;
  // The chances follow how often the index would have been right, whether its draft was used or not.
  void generate(std::int32_t token) override;
  // None where the newest tokens have not occurred before. A look-up takes no time that the pace would count.
  Draft propose(int most, const SpeculationPace& pace) override;

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
