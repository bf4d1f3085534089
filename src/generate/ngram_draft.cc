#include "generate/ngram_draft.h"

#include <algorithm>
#include <iterator>

namespace kvant {
namespace {

// Record i covers matches of up to kLengths[i] tokens, and the last record covers longer matches.
constexpr int kLengths[] = {2, 3, 5, 8, 12};
// Each record starts with an assumed chance that a prediction is right, which counts as much as
// kFirstPredictions predictions.
constexpr double kFirstOdds[] = {0.2, 0.3, 0.4, 0.6, 0.75, 0.85};
constexpr double kFirstPredictions = 4;
// Each prediction multiplies the weight of earlier predictions by this factor, so about the last 30
// predictions count.
constexpr double kFade = 1 - 1.0 / 30;
// This value marks the end of an expected text. The value is not a token, and no draft extends beyond it.
constexpr std::int32_t kTextEnd = -1;

}  // namespace

NgramDraft::NgramDraft() {
  static_assert(std::size(kFirstOdds) == std::size(kLengths) + 1);
  for (std::size_t i = 0; i < records_.size(); ++i)
    records_[i] = {kFirstOdds[i] * kFirstPredictions, kFirstPredictions};
}

std::size_t NgramDraft::record_of(int length) {
  return std::lower_bound(std::begin(kLengths), std::end(kLengths), length) - std::begin(kLengths);
}

void NgramDraft::expect(std::span<const std::int32_t> tokens) {
  read(tokens);
  read(std::array{kTextEnd});
}

void NgramDraft::read(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) index_.append(token);
  match_ = index_.find(copied_to_);
}

void NgramDraft::generate(std::int32_t token) {
  if (match_.length > 0) {
    const bool is_right = index_[match_.next] == token;
    Record& record = records_[record_of(match_.length)];
    record.right = kFade * record.right + (is_right ? 1 : 0);
    record.all = kFade * record.all + 1;
    if (is_right) copied_to_ = match_.next + 1;
  }
  index_.append(token);
  match_ = index_.find(copied_to_);
}

// A match may reach the end of the sequence, as in a text that repeats itself. The draft then continues with
// its own tokens.
Draft NgramDraft::propose(int most, const SpeculationPace& /*pace*/) {
  Draft draft;
  if (match_.length == 0) return draft;
  for (int i = 0; i < most; ++i) {
    const int place = match_.next + i;
    const std::int32_t token = place < index_.size() ? index_[place] : draft.tokens[place - index_.size()];
    if (token == kTextEnd) break;
    const Record& record = records_[record_of(match_.length + i)];
    draft.tokens.push_back(token);
    draft.odds.push_back(record.right / record.all);
  }
  return draft;
}

}  // namespace kvant
