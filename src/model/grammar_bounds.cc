#include "model/grammar_bounds.h"

#include <algorithm>

namespace kvant {
namespace {

// A rule may begin in at most this many ways. Each beginning may be a state of the grammar, and each state is
// tested with all tokens.
constexpr std::int64_t kMaxBeginnings = 4096;
// All chains of rules that begin with one another may have this many symbols together. A symbol counts once
// for each chain.
constexpr std::int64_t kMaxVisited = 20'000'000;
// Rules that begin with one another may form a chain of this depth. llama.cpp, which recurses once per rule,
// can follow such a chain, too.
constexpr int kMaxBeginningDepth = 4096;

class GrammarBounds {
 public:
  explicit GrammarBounds(const GrammarTable& grammar)
      : grammar_(grammar), may_be_empty_(grammar.rules.size()), costs_(grammar.rules.size()) {}

  Status check() {
    find_empty_rules();
    for (std::size_t rule = 0; rule < grammar_.rules.size(); ++rule)
      KVANT_RETURN_IF_ERROR(measure(static_cast<int>(rule)));
    for (std::size_t rule = 0; rule < grammar_.rules.size(); ++rule) {
      KVANT_RETURN_IF_ERROR(check_beginnings(static_cast<int>(rule)));
      KVANT_RETURN_IF_ERROR(check_twins(static_cast<int>(rule)));
    }
    return check_visits();
  }

 private:
  enum class State : std::uint8_t { unknown, begun, known };
  // Cost is the cost of a rule together with all rules with which it can begin.
  struct Cost {
    State state = State::unknown;
    std::int64_t beginnings = 0, visited = 0;  // counting stops shortly after the limits
    int depth = 0;
  };

  std::string name(int rule) const { return grammar_.names[rule].substr(0, 80); }

  // Finds the rules that may be empty. If all parts of an alternative may be empty, its rule may be empty,
  // too. The search repeats that step until no rule is added.
  void find_empty_rules() {
    struct Alternative {
      int rule, n_left;
    };
    std::vector<Alternative> alternatives;                       // alternatives that consist only of rules
    std::vector<std::vector<int>> users(grammar_.rules.size());  // for each rule, the alternatives that
                                                                 // contain it
    std::vector<int> found;
    for (std::size_t rule = 0; rule < grammar_.rules.size(); ++rule) {
      for (const GrammarSequence& sequence : grammar_.rules[rule]) {
        if (std::ranges::any_of(sequence, [](GrammarSymbol symbol) { return symbol < 0; })) continue;
        if (sequence.empty()) add_empty(static_cast<int>(rule), found);
        for (const GrammarSymbol symbol : sequence)
          users[symbol].push_back(static_cast<int>(alternatives.size()));
        alternatives.push_back({static_cast<int>(rule), static_cast<int>(sequence.size())});
      }
    }
    while (!found.empty()) {
      const int empty = found.back();
      found.pop_back();
      for (const int user : users[empty]) {
        if (--alternatives[user].n_left == 0) add_empty(alternatives[user].rule, found);
      }
    }
  }
  void add_empty(int rule, std::vector<int>& found) {
    if (may_be_empty_[rule]) return;
    may_be_empty_[rule] = true;
    found.push_back(rule);
  }

  // Returns the rules with which a rule can begin, once for each way. A rule that repeats itself between
  // empty parts, as in (a*)*, does not count. GrammarMatcher notices that the empty repetition leads back to
  // an earlier state.
  std::vector<int> first_rules(int rule) const {
    std::vector<int> first;
    for (const GrammarSequence& sequence : grammar_.rules[rule]) {
      for (std::size_t i = 0; i < sequence.size() && sequence[i] >= 0; ++i) {
        const bool repeats = sequence[i] == rule && i > 0 && i + 1 == sequence.size();
        if (!repeats) first.push_back(sequence[i]);
        if (!may_be_empty_[sequence[i]]) break;
      }
    }
    return first;
  }

  // Computes the costs of a rule, after the costs of all rules with which it can begin. The stack is
  // explicit, because recursion could be too deep.
  Status measure(int start) {
    struct Step {
      int rule;
      std::vector<int> first;
      std::size_t next = 0;
    };
    std::vector<Step> path;
    const auto begin = [&](int rule) {
      costs_[rule].state = State::begun;
      path.push_back({rule, first_rules(rule)});
    };
    if (costs_[start].state == State::unknown) begin(start);
    while (!path.empty()) {
      Step& step = path.back();
      if (step.next == step.first.size()) {
        sum_up(step.rule, step.first);
        path.pop_back();
        continue;
      }
      const int rule = step.first[step.next++];
      if (costs_[rule].state == State::begun)
        return error(
            "the grammar's rule '{}' can begin with itself, which is not supported: let it begin with "
            "something else, and repeat with * or +",
            name(rule));
      if (costs_[rule].state == State::unknown) begin(rule);
    }
    return {};
  }

  void sum_up(int rule, const std::vector<int>& first) {
    Cost& cost = costs_[rule];
    cost.state = State::known;
    cost.depth = 1;
    for (const GrammarSequence& sequence : grammar_.rules[rule])
      cost.visited += static_cast<std::int64_t>(sequence.size()) + 1;
    cost.beginnings = static_cast<std::int64_t>(grammar_.rules[rule].size());
    for (const int other : first) {
      cost.depth = std::max(cost.depth, costs_[other].depth + 1);
      cost.visited = std::min(cost.visited + costs_[other].visited, kMaxVisited + 1);
      cost.beginnings = std::min(cost.beginnings + costs_[other].beginnings, kMaxBeginnings + 1);
    }
  }

  // Checks how the rule can begin, and how the rest of each alternative can begin after each symbol.
  Status check_beginnings(int rule) const {
    if (costs_[rule].depth > kMaxBeginningDepth)
      return error("the grammar has more than {} rules that begin with one another", kMaxBeginningDepth);
    std::int64_t most = costs_[rule].beginnings;
    for (const GrammarSequence& sequence : grammar_.rules[rule]) {
      std::int64_t beginnings = 1;
      for (auto symbol = sequence.rbegin(); symbol != sequence.rend(); ++symbol) {
        const bool goes_on = *symbol >= 0 && may_be_empty_[*symbol];
        beginnings = (goes_on ? beginnings : 1) + (*symbol < 0 ? 0 : costs_[*symbol].beginnings);
        beginnings = std::min(beginnings, kMaxBeginnings + 1);
        most = std::max(most, beginnings);
      }
    }
    if (most > kMaxBeginnings)
      return error("the grammar's rule '{}' can begin or continue in more than {} ways", name(rule),
                   kMaxBeginnings);
    return {};
  }

  Status check_twins(int rule) const {
    std::vector<const GrammarSequence*> alternatives;
    for (const GrammarSequence& sequence : grammar_.rules[rule]) {
      if (!sequence.empty() && sequence.front() < 0) alternatives.push_back(&sequence);
    }
    std::ranges::sort(
        alternatives, {}, [](const GrammarSequence* sequence) -> const auto& { return *sequence; });
    for (std::size_t i = 1; i < alternatives.size(); ++i) {
      if (*alternatives[i] == *alternatives[i - 1])
        return error("the grammar's rule '{}' has the same alternative twice: leave one out", name(rule));
    }
    return {};
  }

  // Adds up the symbols of all chains. A chain starts at each rule that no earlier chain has reached.
  Status check_visits() const {
    std::vector<bool> been(grammar_.rules.size());
    std::int64_t visited = 0;
    for (std::size_t start = 0; start < grammar_.rules.size(); ++start) {
      if (been[start]) continue;
      visited += costs_[start].visited;
      if (visited > kMaxVisited) return error("the grammar's rules begin with one another in too many ways");
      std::vector<int> open = {static_cast<int>(start)};
      been[start] = true;
      while (!open.empty()) {
        const int rule = open.back();
        open.pop_back();
        for (const int other : first_rules(rule)) {
          if (been[other]) continue;
          been[other] = true;
          open.push_back(other);
        }
      }
    }
    return {};
  }

  const GrammarTable& grammar_;
  std::vector<bool> may_be_empty_;
  std::vector<Cost> costs_;
};

}  // namespace

Status check_bounds(const GrammarTable& grammar) {
  return GrammarBounds(grammar).check();
}

}  // namespace kvant
