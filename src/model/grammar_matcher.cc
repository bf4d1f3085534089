#include "model/grammar_matcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvant {
namespace {

constexpr int kTextEnd = 0;  // this node is the end of the text

bool holds(const GrammarTerminal& terminal, std::uint32_t low, std::uint32_t high) {
  return std::ranges::any_of(terminal.ranges,
                             [&](const auto& range) { return range.first <= high && low <= range.second; });
}

// Returns whether the terminal may contain a character in [low, high]. For a set of excluded characters, the
// result is false only if a single excluded range covers [low, high]. Otherwise the next byte decides.
bool matches_some(const GrammarTerminal& terminal, std::uint32_t low, std::uint32_t high) {
  using Kind = GrammarTerminal::Kind;
  switch (terminal.kind) {
    case Kind::any:
      return true;
    case Kind::set:
      return holds(terminal, low, high);
    case Kind::others:
      return std::ranges::none_of(
          terminal.ranges, [&](const auto& range) { return range.first <= low && high <= range.second; });
    default:
      return false;
  }
}

}  // namespace

GrammarPlaces::GrammarPlaces(GrammarTable table) : terminals_(std::move(table.terminals)), root_(table.root) {
  beginnings_.resize(table.rules.size());
  for (std::size_t rule = 0; rule < table.rules.size(); ++rule) {
    for (const GrammarSequence& sequence : table.rules[rule]) {
      beginnings_[rule].push_back(static_cast<int>(symbols_.size()));
      symbols_.insert(symbols_.end(), sequence.begin(), sequence.end());
      symbols_.push_back(kEnd);
    }
  }
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const GrammarPlaces> places) : places_(std::move(places)) {
  nodes_.push_back({-1, -1});
  seen_.push_back(0);
  ++mark_;
  number({});
  States start;
  for (const int place : places_->beginnings(places_->root())) add_closure(node(place, kTextEnd), start);
  start_ = number(std::move(start));
}

GrammarStates GrammarMatcher::number(States states) {
  std::ranges::sort(states);
  work_ += kWorkOfSet + static_cast<std::int64_t>(states.size()) * 10;
  const auto [at, is_new] = set_numbers_.try_emplace(states, static_cast<GrammarStates>(sets_.size()));
  if (is_new) {
    n_states_ += 2 * states.size();
    sets_.push_back(std::move(states));
  }
  return at->second;
}

int GrammarMatcher::node(int place, int after) {
  const std::uint64_t key = static_cast<std::uint64_t>(place) << 32 | static_cast<std::uint32_t>(after);
  const auto [at, is_new] = numbers_.try_emplace(key, static_cast<int>(nodes_.size()));
  if (is_new) {
    nodes_.push_back({place, after});
    seen_.push_back(0);
  }
  work_ += kWorkOfNode;
  return at->second;
}

// Adds the states in which a node begins, except states that already have the newest mark.
void GrammarMatcher::add_closure(int of, States& to) {
  std::vector<int> open = {of};
  while (!open.empty() && !is_exhausted()) {
    const int at = open.back();
    open.pop_back();
    if (std::exchange(seen_[at], mark_) == mark_) continue;
    if (at == kTextEnd) {
      to.push_back(at);
      continue;
    }
    const Node now = nodes_[at];
    const GrammarSymbol symbol = places_->symbol(now.place);
    if (symbol == GrammarPlaces::kEnd) {
      open.push_back(now.after);
    } else if (symbol < 0) {
      to.push_back(at);
    } else {
      const bool is_last = places_->symbol(now.place + 1) == GrammarPlaces::kEnd;
      const int after = is_last ? now.after : node(now.place + 1, now.after);
      for (const int place : places_->beginnings(symbol)) open.push_back(node(place, after));
    }
  }
}

const GrammarMatcher::States& GrammarMatcher::closure(int of) {
  const auto [at, is_new] = closures_.try_emplace(of);
  if (is_new) {
    ++mark_;
    add_closure(of, at->second);
    n_states_ += at->second.size();
  }
  return at->second;
}

template <class Matches>
GrammarMatcher::States GrammarMatcher::follow(GrammarStates from, const Matches& matches) {
  States to;
  std::vector<const States*> parts;
  for (const int state : sets_[from]) {
    work_ += 4;
    if (is_exhausted()) return {};
    if (state == kTextEnd || !matches(places_->terminal(nodes_[state].place))) continue;
    parts.push_back(&closure(node(nodes_[state].place + 1, nodes_[state].after)));
  }
  ++mark_;
  for (const States* part : parts) {
    work_ += static_cast<std::int64_t>(part->size()) * 2;
    if (is_exhausted()) return {};
    for (const int state : *part) {
      if (std::exchange(seen_[state], mark_) != mark_) to.push_back(state);
    }
  }
  return to;
}

GrammarStates GrammarMatcher::after(GrammarStates from, std::uint32_t character) {
  work_ += kWorkOfKnown;
  if (is_exhausted()) return kNoStates;
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 32 | character;
  if (const auto known = steps_.find(key); known != steps_.end()) return known->second;
  const GrammarStates to = number(follow(
      from, [&](const GrammarTerminal& terminal) { return matches_some(terminal, character, character); }));
  if (is_exhausted()) return kNoStates;
  steps_.emplace(key, to);
  return to;
}

GrammarStates GrammarMatcher::after_token(GrammarStates from, std::int32_t token) {
  return number(follow(from, [&](const GrammarTerminal& terminal) {
    using Kind = GrammarTerminal::Kind;
    return (terminal.kind == Kind::token && terminal.token == token) ||
           (terminal.kind == Kind::other_token && terminal.token != token);
  }));
}

GrammarStates GrammarMatcher::possible(GrammarStates from, std::uint32_t low, std::uint32_t high) {
  States to;
  work_ += static_cast<std::int64_t>(sets_[from].size()) * 4;
  if (is_exhausted()) return kNoStates;
  std::ranges::copy_if(sets_[from], std::back_inserter(to), [&](int state) {
    return state != kTextEnd && matches_some(places_->terminal(nodes_[state].place), low, high);
  });
  return number(std::move(to));
}

GrammarStates GrammarMatcher::either(GrammarStates a, GrammarStates b) {
  States to;
  std::ranges::set_union(sets_[a], sets_[b], std::back_inserter(to));
  return number(std::move(to));
}

bool GrammarMatcher::may_end(GrammarStates states) const {
  return !sets_[states].empty() && sets_[states].front() == kTextEnd;
}

bool GrammarMatcher::wants_tokens(GrammarStates states) const {
  using Kind = GrammarTerminal::Kind;
  return std::ranges::any_of(sets_[states], [&](int state) {
    if (state == kTextEnd) return false;
    const Kind kind = places_->terminal(nodes_[state].place).kind;
    return kind == Kind::token || kind == Kind::other_token;
  });
}

void GrammarMatcher::begin_token(GrammarStates& kept) {
  if (nodes_.size() > forget_at_ || n_states_ > kManyStates || sets_.size() + steps_.size() > kManySteps)
    forget(kept);
  // Open possibilities of a text keep their memory as long as they are open, so the memory counts as work.
  work_ = nodes_.size() > kMostNodes ? kMostWork + 1 : 0;
}

void GrammarMatcher::forget(GrammarStates& kept) {
  std::vector<int> renamed(nodes_.size(), -1);
  renamed[kTextEnd] = 0;
  for (const GrammarStates states : {kept, start_}) {
    for (const int state : sets_[states]) renamed[state] = 0;
  }
  for (std::size_t i = nodes_.size(); i-- > 1;) {
    if (renamed[i] == 0) renamed[nodes_[i].after] = 0;
  }
  const std::vector<Node> before = std::exchange(nodes_, {});
  numbers_.clear();
  closures_.clear();
  steps_.clear();
  seen_.clear();
  nodes_.push_back(before[kTextEnd]);
  seen_.push_back(0);
  for (std::size_t i = 1; i < before.size(); ++i) {
    if (renamed[i] == 0) renamed[i] = node(before[i].place, renamed[before[i].after]);
  }
  mark_ = 0;
  forget_at_ = std::max(kManyNodes, 2 * nodes_.size());
  n_states_ = 0;
  const std::vector<States> sets = std::exchange(sets_, {});
  set_numbers_.clear();
  number({});
  const auto rename = [&](GrammarStates states) {
    States to = sets[states];
    for (int& state : to) state = renamed[state];
    return number(std::move(to));
  };
  start_ = rename(start_);
  kept = rename(kept);
}

}  // namespace kvant
