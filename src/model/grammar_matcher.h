// GrammarMatcher: in which states a text leaves a grammar, character by character.
//
// A state is what is left of the text: a terminal, and what comes after it, as a linked list of places in the
// rules that states share. Equal ones are the same number, so that a set of states has each once however many
// ways lead there. All work is counted: a grammar that can be read in ever more ways is found out while its
// states are made (is_exhausted()), not by the time that has gone by then.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/grammar_rules.h"

namespace kvant {

// A set of states, by its number: equal ones have the same.
using GrammarStates = int;
inline constexpr GrammarStates kNoStates = 0;

// What the states of one grammar have in common.
class GrammarPlaces {
 public:
  explicit GrammarPlaces(GrammarTable table);

  // A place: a number among the symbols of all alternatives, one after another. kEnd is behind each's last.
  static constexpr GrammarSymbol kEnd = INT32_MAX;
  GrammarSymbol symbol(int place) const { return symbols_[place]; }
  std::span<const int> beginnings(GrammarSymbol rule) const { return beginnings_[rule]; }
  int root() const { return root_; }
  const GrammarTerminal& terminal(int place) const { return terminals_[~symbols_[place]]; }

 private:
  std::vector<GrammarSymbol> symbols_;
  std::vector<std::vector<int>> beginnings_;  // of each rule: the first places of its alternatives
  std::vector<GrammarTerminal> terminals_;
  int root_;
};

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const GrammarPlaces> places);

  GrammarStates start() const { return start_; }
  // The states after one more character.
  GrammarStates after(GrammarStates from, std::uint32_t character);
  // Those of `from` in which some character of low to high may come.
  GrammarStates possible(GrammarStates from, std::uint32_t low, std::uint32_t high);
  // The states after a token that stands for itself.
  GrammarStates after_token(GrammarStates from, std::int32_t token);
  GrammarStates either(GrammarStates a, GrammarStates b);
  bool may_end(GrammarStates states) const;
  // Whether a token that stands for itself may come, whatever its text.
  bool wants_tokens(GrammarStates states) const;
  std::size_t size(GrammarStates states) const { return sets_[states].size(); }

  // Between two tokens: counts anew, and forgets what doesn't follow from `kept`, which is renumbered.
  void begin_token(GrammarStates& kept);
  // Since then it has taken more work than a token may, or more memory: states are missing.
  bool is_exhausted() const { return work_ > kMostWork; }

 private:
  // By and large what they take: the most is about a second of the processor.
  static constexpr std::int64_t kMostWork = 200'000'000, kWorkOfNode = 60, kWorkOfKnown = 15,
                                kWorkOfSet = 200;
  static constexpr std::size_t kManyNodes = 1 << 16, kMostNodes = 1 << 21, kManySteps = 1 << 18,
                               kManyStates = 1 << 23;

  struct Node {
    int place;
    int after;  // the node behind this alternative
  };
  int node(int place, int after);
  using States = std::vector<int>;  // nodes, each once
  void add_closure(int of, States& to);
  const States& closure(int of);
  template <class Matches>
  States follow(GrammarStates from, const Matches& matches);
  GrammarStates number(States states);
  void forget(GrammarStates& kept);

  std::shared_ptr<const GrammarPlaces> places_;
  std::vector<Node> nodes_;  // 0: the text's end. A node's `after` comes before it
  std::unordered_map<std::uint64_t, int> numbers_;
  std::unordered_map<int, States> closures_;
  std::vector<States> sets_;
  std::map<States, GrammarStates> set_numbers_;
  std::unordered_map<std::uint64_t, GrammarStates> steps_;  // by set and character
  std::vector<std::uint32_t> seen_;                         // [nodes]: the newest mark
  std::uint32_t mark_ = 0;
  std::int64_t work_ = 0;
  std::size_t n_states_ = 0;  // in closures_, sets_ and set_numbers_
  std::size_t forget_at_ = kManyNodes;
  GrammarStates start_ = kNoStates;
};

}  // namespace kvant
