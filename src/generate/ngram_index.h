// NgramIndex: where the newest tokens of a sequence have occurred in it before (prompt look-up).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

// Hash chains over pairs of tokens, as LZ77 coders have them: append() takes constant time, find() looks at
// kMostPlaces places at most, and a token takes 12 bytes.
class NgramIndex {
 public:
  static constexpr int kShortest = 2;  // tokens of a match
  static constexpr int kLongest = 16;  // longer matches are not told apart
  static constexpr int kMostPlaces = 64;

  void append(std::int32_t token);

  struct Match {
    int next = -1;   // the place of the token that followed; -1: there is no match
    int length = 0;  // tokens that agree, kLongest at most
  };
  // The longest match of the newest tokens among the newest kMostPlaces places that end with the same pair.
  // Of equally long matches: the first one at or behind `expected`, else the newest. A copied text goes on
  // where it was left, so that place is a good guess. Requires kShortest tokens for a match.
  Match find(int expected) const;

  int size() const { return static_cast<int>(tokens_.size()); }
  std::int32_t operator[](int place) const { return tokens_[place]; }

 private:
  std::size_t slot(std::int32_t before, std::int32_t last) const;
  void link(int place);
  int matched(int end) const;

  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> previous_;  // by place: the one before it in its chain; -1: none
  std::vector<std::int32_t> newest_;    // by slot, a power of two: the newest place of its chain
};

}  // namespace kvant
