// GrammarMatcher tracks the states of a grammar after a text, character by character.
//
// A state consists of a terminal that may follow, and of the places in the rules after the terminal. The
// places form a linked list that states share. Equal states have the same number, so a set of states contains
// each one once, however many ways lead to it. The number of readings of a text may grow with each character.
// The matcher therefore counts its work and gives up at a limit (is_exhausted()). Unlike a time limit, the
// limit on work always applies at the same character.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/grammar_rules.h"

namespace kvant {

// GrammarStates identifies a set of states by a number. Equal sets have the same number.
using GrammarStates = int;
inline constexpr GrammarStates kNoStates = 0;

// GrammarPlaces holds the rules of one grammar as a list of places, which all its states share.
class GrammarPlaces {
 public:
  explicit GrammarPlaces(GrammarTable table);

  // A place is an index into the concatenated symbols of all alternatives. kEnd follows the last symbol of
  // each alternative.
  static constexpr GrammarSymbol kEnd = INT32_MAX;
  GrammarSymbol symbol(int place) const { return symbols_[place]; }
  std::span<const int> beginnings(GrammarSymbol rule) const { return beginnings_[rule]; }
  int root() const { return root_; }
  const GrammarTerminal& terminal(int place) const { return terminals_[~symbols_[place]]; }

 private:
  std::vector<GrammarSymbol> symbols_;
  std::vector<std::vector<int>> beginnings_;  // the first place of each alternative of each rule
  std::vector<GrammarTerminal> terminals_;
  int root_;
};

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const GrammarPlaces> places);

  GrammarStates start() const { return start_; }
  // Returns the states after one more character.
  GrammarStates after(GrammarStates from, std::uint32_t character);
  // Returns the states of `from` in which some character in [low, high] may come next.
  GrammarStates possible(GrammarStates from, std::uint32_t low, std::uint32_t high);
  // Returns the states after a token that the rules name explicitly.
  GrammarStates after_token(GrammarStates from, std::int32_t token);
  GrammarStates either(GrammarStates a, GrammarStates b);
  bool may_end(GrammarStates states) const;
  // Returns whether a token that the rules name may come next, whatever the token's text.
  bool wants_tokens(GrammarStates states) const;
  std::size_t size(GrammarStates states) const { return sets_[states].size(); }

  // Prepares the matcher for the next token. The function resets the count of work, and forgets all states
  // that cannot be reached from `kept`. `kept` may get a new number.
  void begin_token(GrammarStates& kept);
  // Returns whether the work or memory since begin_token() exceeds the limit for one token. Sets of states
  // are then incomplete.
  bool is_exhausted() const { return work_ > kMostWork; }

 private:
  // All these costs are approximate. The maximum is about a second of processor time.
  static constexpr std::int64_t kMostWork = 200'000'000, kWorkOfNode = 60, kWorkOfKnown = 15,
                                kWorkOfSet = 200;
  static constexpr std::size_t kManyNodes = 1 << 16, kMostNodes = 1 << 21, kManySteps = 1 << 18,
                               kManyStates = 1 << 23;

  struct Node {
    int place;
    int after;  // the node after the end of this alternative
  };
  int node(int place, int after);
  using States = std::vector<int>;  // a set of nodes, each at most once
  void add_closure(int of, States& to);
  const States& closure(int of);
  template <class Matches>
  States follow(GrammarStates from, const Matches& matches);
  GrammarStates number(States states);
  void forget(GrammarStates& kept);

  std::shared_ptr<const GrammarPlaces> places_;
  std::vector<Node> nodes_;  // node 0 is the end of the text; the `after` of a node has a smaller number
  std::unordered_map<std::uint64_t, int> numbers_;
  std::unordered_map<int, States> closures_;
  std::vector<States> sets_;
  std::map<States, GrammarStates> set_numbers_;
  std::unordered_map<std::uint64_t, GrammarStates> steps_;  // next states by set and character
  std::vector<std::uint32_t> seen_;                         // [nodes], each node's newest mark
  std::uint32_t mark_ = 0;
  std::int64_t work_ = 0;
  std::size_t n_states_ = 0;  // the number of states in closures_, sets_ and set_numbers_ together
  std::size_t forget_at_ = kManyNodes;
  GrammarStates start_ = kNoStates;
};

}  // namespace kvant
