// NgramIndex: finds where the newest tokens of a sequence occurred in it before (prompt lookup).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant {

// Hash chains over pairs of tokens, as in LZ77 coders. append() takes constant time, find() visits at most
// kMostPlaces places, and each token takes 12 bytes.
class NgramIndex {
 public:
  static constexpr int kShortest = 2;  // minimal length of a match
  static constexpr int kLongest = 16;  // longer matches are not distinguished
  static constexpr int kMostPlaces = 64;

  void append(std::int32_t token);

  struct Match {
    int next = -1;   // the place of the token that followed; -1: there is no match
    int length = 0;  // agreeing tokens, at most kLongest
  };
  // Returns the longest match of the newest tokens among the newest kMostPlaces places that end with the same
  // pair. Of equally long matches it returns the first one at or after `expected`, else the newest: a copied
  // text tends to continue where it was left. Matches shorter than kShortest do not count.
  Match find(int expected) const;

  int size() const { return static_cast<int>(tokens_.size()); }
  std::int32_t operator[](int place) const { return tokens_[place]; }

 private:
  std::size_t slot(std::int32_t before, std::int32_t last) const;
  void link(int place);
  int matched(int end) const;

  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> previous_;  // by place: the previous place in its chain; -1: none
  std::vector<std::int32_t> newest_;    // by slot (a power of two): the newest place of its chain
};

}  // namespace kvant
