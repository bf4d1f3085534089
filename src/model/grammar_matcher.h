// GrammarMatcher tracks the states of a grammar after a text, character by character.
//
// A state is what is left of the text: a terminal and what follows it, as a linked list of places in the
// rules, which states share. Equal states have the same number, so a set contains each one once, however many
// ways lead to it. All work is counted. So a grammar with ever more readings is detected while its states are
// made (is_exhausted()), not by elapsed time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/grammar_rules.h"

namespace kvant {

// The number of a set of states. Equal sets have the same number.
using GrammarStates = int;
inline constexpr GrammarStates kNoStates = 0;

// Holds what the states of one grammar have in common.
class GrammarPlaces {
 public:
  explicit GrammarPlaces(GrammarTable table);

  // A place is a number among the symbols of all alternatives, in order. kEnd follows the last symbol of
  // each.
  static constexpr GrammarSymbol kEnd = INT32_MAX;
  GrammarSymbol symbol(int place) const { return symbols_[place]; }
  std::span<const int> beginnings(GrammarSymbol rule) const { return beginnings_[rule]; }
  int root() const { return root_; }
  const GrammarTerminal& terminal(int place) const { return terminals_[~symbols_[place]]; }

 private:
  std::vector<GrammarSymbol> symbols_;
  std::vector<std::vector<int>> beginnings_;  // for each rule, the first places of its alternatives
  std::vector<GrammarTerminal> terminals_;
  int root_;
};

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const GrammarPlaces> places);

  GrammarStates start() const { return start_; }
  // Returns the states after one more character.
  GrammarStates after(GrammarStates from, std::uint32_t character);
  // Returns the states of `from` in which some character in [low, high] may come.
  GrammarStates possible(GrammarStates from, std::uint32_t low, std::uint32_t high);
  // Returns the states after a token that the rules name.
  GrammarStates after_token(GrammarStates from, std::int32_t token);
  GrammarStates either(GrammarStates a, GrammarStates b);
  bool may_end(GrammarStates states) const;
  // Returns whether a token that the rules name may come, whatever its text.
  bool wants_tokens(GrammarStates states) const;
  std::size_t size(GrammarStates states) const { return sets_[states].size(); }

  // Call it between two tokens. It resets the count, and forgets everything that does not follow from `kept`,
  // which it renumbers.
  void begin_token(GrammarStates& kept);
  // Returns whether, since then, it took more work or memory than a token may. States are missing then.
  bool is_exhausted() const { return work_ > kMostWork; }

 private:
  // Approximate costs; the maximum is about a second of the processor.
  static constexpr std::int64_t kMostWork = 200'000'000, kWorkOfNode = 60, kWorkOfKnown = 15,
                                kWorkOfSet = 200;
  static constexpr std::size_t kManyNodes = 1 << 16, kMostNodes = 1 << 21, kManySteps = 1 << 18,
                               kManyStates = 1 << 23;

  struct Node {
    int place;
    int after;  // the node after this alternative
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
  std::vector<Node> nodes_;  // 0 is the text's end; a node's `after` comes before it
  std::unordered_map<std::uint64_t, int> numbers_;
  std::unordered_map<int, States> closures_;
  std::vector<States> sets_;
  std::map<States, GrammarStates> set_numbers_;
  std::unordered_map<std::uint64_t, GrammarStates> steps_;  // by set and character
  std::vector<std::uint32_t> seen_;                         // [nodes]: the newest mark
  std::uint32_t mark_ = 0;
  std::int64_t work_ = 0;
  std::size_t n_states_ = 0;  // number of states in closures_, sets_ and set_numbers_
  std::size_t forget_at_ = kManyNodes;
  GrammarStates start_ = kNoStates;
};

}  // namespace kvant
