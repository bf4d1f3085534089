#include "generate/ngram_index.h"

#include <algorithm>

namespace kvant {
namespace {

constexpr std::size_t kFirstSlots = 1024;

}  // namespace

std::size_t NgramIndex::slot(std::int32_t before, std::int32_t last) const {
  const std::uint64_t pair =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(before)) << 32 | static_cast<std::uint32_t>(last);
  return (pair * 0x9e3779b97f4a7c15ULL >> 32) & (newest_.size() - 1);
}

// Makes the pair of tokens that ends at `place` the head of its hash chain.
void NgramIndex::link(int place) {
  std::int32_t& newest = newest_[slot(tokens_[place - 1], tokens_[place])];
  previous_[place] = newest;
  newest = place;
}

void NgramIndex::append(std::int32_t token) {
  tokens_.push_back(token);
  previous_.push_back(-1);
  if (tokens_.size() > newest_.size()) {
    newest_.assign(std::max(kFirstSlots, 2 * newest_.size()), -1);
    for (int place = 1; place < size(); ++place) link(place);
  } else if (size() > 1) {
    link(size() - 1);
  }
}

// Returns how many tokens up to `end` agree with the newest tokens.
int NgramIndex::matched(int end) const {
  const int most = std::min(end + 1, kLongest);
  int n = 0;
  while (n < most && tokens_[end - n] == tokens_[size() - 1 - n]) ++n;
  return n;
}

NgramIndex::Match NgramIndex::find(int expected) const {
  Match best;
  if (size() < kShortest) return best;
  int place = previous_[size() - 1];
  for (int looked = 0; place >= 0 && looked < kMostPlaces; ++looked, place = previous_[place]) {
    const int length = matched(place);
    const int next = place + 1;
    // Places come in descending order. A place at or after `expected` is therefore nearer to `expected` than
    // the places that the loop has visited before.
    const bool is_nearer = length == best.length && next >= expected && expected >= 0;
    if (length >= kShortest && (length > best.length || is_nearer)) best = {next, length};
  }
  return best;
}

}  // namespace kvant
