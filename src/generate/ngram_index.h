// NgramIndex finds where the newest tokens of a sequence occurred earlier in the sequence (prompt lookup). A
// look-up must take very little time, so the index hashes pairs of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

// The index has hash chains over pairs of tokens, like LZ77 coders. append() takes constant time on average,
// and find() visits at most kMostPlaces places. Each token takes 12 to 16 bytes.
class NgramIndex {
 public:
  static constexpr int kShortest = 2;  // shorter matches do not count
  static constexpr int kLongest = 16;  // longer matches count as this long
  static constexpr int kMostPlaces = 64;

  void append(std::int32_t token);

  struct Match {
    int next = -1;   // the place of the token after the match; -1 if there is no match
    int length = 0;  // this many tokens agree, at most kLongest
  };
  // Returns the longest match of the newest tokens. Only the newest kMostPlaces places that end with the same
  // pair of tokens are visited. If several matches are equally long, the first match at or after `expected`
  // wins. A copied text tends to continue where the last copy ended. If there is no such match, the newest
  // match wins. Matches shorter than kShortest do not count.
  Match find(int expected) const;

  int size() const { return static_cast<int>(tokens_.size()); }
  std::int32_t operator[](int place) const { return tokens_[place]; }

 private:
  std::size_t slot(std::int32_t before, std::int32_t last) const;
  void link(int place);
  int matched(int end) const;

  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> previous_;  // by place: the previous place in the chain; -1 if the chain begins
                                        // here
  std::vector<std::int32_t> newest_;    // by slot: the newest place of the slot's chain; the size is a power
                                        // of two
};

}  // namespace kvant
