#include "model/grammar_rules.h"

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

namespace kvant {
namespace {

// A grammar may have this many elements after its repetitions are expanded: characters, members of sets,
// references and rules.
constexpr std::int64_t kMaxElements = 100'000;
// All names together may have this many bytes. Rules for parts of a rule are named after the rule, so names
// can get long.
constexpr std::int64_t kMaxNameBytes = 16 << 20;
constexpr int kMaxParentheses = 128;  // the parser recurses once per parenthesis
constexpr int kNoLimit = -1;

class GrammarReader {
 public:
  explicit GrammarReader(const std::string& text) : start_(text.c_str()), at_(start_) {}

  Result<GrammarTable> read() {
    skip_space(/*lines=*/true);
    while (!failure_ && *at_ != 0) read_rule();
    for (std::size_t rule = 0; rule < table_.rules.size() && !failure_; ++rule) {
      if (table_.rules[rule].empty()) fail(fmt::format("has no rule '{:.80}'", table_.names[rule]));
    }
    if (!failure_ && !numbers_.contains("root")) fail("has no rule 'root'");
    if (failure_) return *failure_;
    table_.root = numbers_.at("root");
    describe_terminals();
    return std::move(table_);
  }

 private:
  void fail(const std::string& what) {
    if (!failure_) failure_ = error("the grammar {}", what);
  }
  void fail_here(const char* what) { fail(fmt::format("{} at byte {}", what, at_ - start_)); }

  void charge(std::int64_t elements) {
    elements_ += elements;
    if (elements_ > kMaxElements)
      fail(fmt::format("has more than {} parts when its repetitions are written out", kMaxElements));
  }

  static bool is_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  }

  void skip_space(bool lines) {
    while (true) {
      if (*at_ == '#') {
        while (*at_ != 0 && *at_ != '\r' && *at_ != '\n') ++at_;
      } else if (*at_ == ' ' || *at_ == '\t' || (lines && (*at_ == '\r' || *at_ == '\n'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  // The functions from new_rule() to read_group() read rules.

  int new_rule(const std::string& name) {
    table_.rules.emplace_back();
    table_.names.push_back(name);
    name_bytes_ += static_cast<std::int64_t>(name.size());
    if (name_bytes_ > kMaxNameBytes) fail("has names that are too long");
    charge(1);
    return static_cast<int>(table_.rules.size()) - 1;
  }

  std::string read_name() {
    const char* begin = at_;
    while (is_of_name(*at_)) ++at_;
    if (at_ == begin) fail_here("should have a rule's name");
    return {begin, at_};
  }

  int rule_of(const std::string& name) {
    if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
    return numbers_[name] = new_rule(name);
  }

  void read_rule() {
    const std::string name = read_name();
    const int rule = rule_of(name);
    skip_space(/*lines=*/false);
    if (failure_) return;
    if (std::strncmp(at_, "::=", 3) != 0) return fail_here("should have '::='");
    at_ += 3;
    skip_space(/*lines=*/true);
    read_alternatives(rule, name, /*depth=*/0);
    if (*at_ != 0 && *at_ != '\r' && *at_ != '\n') fail_here("has an unexpected character");
    skip_space(/*lines=*/true);
  }

  void read_alternatives(int rule, const std::string& name, int depth) {
    std::vector<GrammarSequence> alternatives;
    while (true) {
      alternatives.push_back(read_sequence(name, depth));
      charge(1);
      if (failure_ || *at_ != '|') break;
      ++at_;
      skip_space(/*lines=*/true);
    }
    table_.rules[rule] = std::move(alternatives);
  }

  GrammarSequence read_sequence(const std::string& name, int depth) {
    GrammarSequence sequence;
    std::size_t last = 0;  // the position where the repeated symbols begin
    while (!failure_) {
      const char c = *at_;
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        read_repetition(sequence, last, name, depth > 0);
        continue;
      }
      const std::size_t begin = sequence.size();
      if (c == '"') {
        read_literal(sequence);
      } else if (c == '[') {
        read_set(sequence);
      } else if (c == '<' || c == '!') {
        read_token(sequence);
      } else if (c == '.') {
        ++at_;
        add_terminal(sequence, {kAny}, 1);
      } else if (c == '(') {
        read_group(sequence, name, depth);
      } else if (is_of_name(c)) {
        sequence.push_back(rule_of(read_name()));
        charge(1);
      } else {
        break;
      }
      last = begin;
      skip_space(/*lines=*/depth > 0);
    }
    return sequence;
  }

  void read_group(GrammarSequence& sequence, const std::string& name, int depth) {
    if (depth == kMaxParentheses)
      return fail(fmt::format("has parentheses that are nested more than {} deep", kMaxParentheses));
    ++at_;
    skip_space(/*lines=*/true);
    const int rule = new_rule(name);
    read_alternatives(rule, name, depth + 1);
    if (*at_ != ')') return fail_here("should have a ')'");
    ++at_;
    sequence.push_back(rule);
    charge(1);
  }

  // read_count(), read_repetition() and repeat() read repetitions.

  int read_count() {
    int count = 0;
    if (*at_ < '0' || *at_ > '9') fail_here("should have a number");
    for (; *at_ >= '0' && *at_ <= '9' && !failure_; ++at_) {
      count = 10 * count + (*at_ - '0');
      if (count > kMaxGrammarRepetitions)
        fail(fmt::format("repeats something more than {} times, which is the limit", kMaxGrammarRepetitions));
    }
    return count;
  }

  void read_repetition(GrammarSequence& sequence, std::size_t last, const std::string& name, bool lines) {
    const char c = *at_++;
    skip_space(lines);
    if (c != '{') return repeat(sequence, last, c == '+' ? 1 : 0, c == '?' ? 1 : kNoLimit, name);
    const int least = read_count();
    int most = least;
    skip_space(lines);
    if (*at_ == ',') {
      ++at_;
      skip_space(lines);
      most = *at_ == '}' ? kNoLimit : read_count();
      skip_space(lines);
    }
    if (*at_ != '}') return fail_here("should have a '}'");
    ++at_;
    skip_space(lines);
    if (most != kNoLimit && most < least)
      return fail(fmt::format("repeats something at least {} times and at most {}", least, most));
    repeat(sequence, last, least, most, name);
  }

  // Writes S{m,n} as m copies of S and a rule for up to n - m more. That rule is S followed by the rule for
  // one less, or nothing.
  void repeat(GrammarSequence& sequence, std::size_t last, int least, int most, const std::string& name) {
    if (failure_) return;
    if (last == sequence.size()) return fail_here("has nothing to repeat");
    const GrammarSequence unit(sequence.begin() + static_cast<std::ptrdiff_t>(last), sequence.end());
    std::int64_t size = 0;
    for (const GrammarSymbol symbol : unit) size += symbol < 0 ? terminal_sizes_[~symbol] : 1;
    const int n_rules = most == kNoLimit ? 1 : most - least;
    charge(size * least + (size + 2) * n_rules);
    if (failure_) return;
    sequence.resize(last);
    for (int i = 0; i < least; ++i) sequence.insert(sequence.end(), unit.begin(), unit.end());
    int rule = -1;
    for (int i = 0; i < n_rules && !failure_; ++i) {
      const int less = rule;
      rule = new_rule(name);
      GrammarSequence more = unit;
      if (most == kNoLimit) more.push_back(rule);
      if (less >= 0) more.push_back(less);
      table_.rules[rule] = {std::move(more), {}};
    }
    if (rule >= 0) sequence.push_back(rule);
  }

  // The functions from here to read_token() read and describe terminals.

  enum Kind : std::uint32_t { kSet, kSetOfOthers, kAny, kToken, kOtherToken };  // kinds of GrammarTerminal

  void describe_terminals() {
    table_.terminals.resize(terminals_.size());
    for (const auto& [of, number] : terminals_) {
      GrammarTerminal& terminal = table_.terminals[number];
      terminal.kind = static_cast<GrammarTerminal::Kind>(of[0]);
      if (of[0] == kToken || of[0] == kOtherToken) {
        for (std::size_t i = 2; i < of.size(); ++i) terminal.token_text += static_cast<char>(of[i]);
      } else {
        for (std::size_t i = 1; i + 1 < of.size(); i += 2) terminal.ranges.emplace_back(of[i], of[i + 1]);
      }
    }
  }

  // `terminal` holds the kind and then the contents. `size` is the number of elements that llama.cpp uses for
  // the terminal.
  void add_terminal(GrammarSequence& sequence, const std::vector<std::uint32_t>& terminal, int size) {
    const auto [at, is_new] = terminals_.try_emplace(terminal, static_cast<int>(terminal_sizes_.size()));
    if (is_new) terminal_sizes_.push_back(size);
    sequence.push_back(~at->second);
    charge(size);
  }

  std::uint32_t read_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = *at_;
      const bool is_number = c >= '0' && c <= '9', is_lower = c >= 'a' && c <= 'f';
      if (!is_number && !is_lower && (c < 'A' || c > 'F')) {
        fail_here("should have a hexadecimal digit");
        return 0;
      }
      const int digit = is_number ? c - '0' : c - (is_lower ? 'a' : 'A') + 10;
      value = 16 * value + static_cast<std::uint32_t>(digit);
    }
    return value;
  }

  std::uint32_t read_escape() {
    const char c = *++at_;
    if (c == 0 || std::string_view("xuUtrn\\\"[]-").find(c) == std::string_view::npos) {
      fail_here("has an unknown escape");
      return 0;
    }
    ++at_;
    if (c == 'x' || c == 'u' || c == 'U') return read_hex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    return static_cast<unsigned char>(c == 't' ? '\t' : c == 'r' ? '\r' : c == 'n' ? '\n' : c);
  }

  // Reads a UTF-8 character. An invalid byte becomes the character of the same number.
  std::uint32_t read_character() {
    if (*at_ == 0) {
      fail("ends in the middle of a text or a set");
      return 0;
    }
    if (*at_ == '\\') return read_escape();
    constexpr std::array<int, 16> kLengths = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    const auto first = static_cast<unsigned char>(*at_++);
    const int length = kLengths[first >> 4];
    std::uint32_t value = first & ((1U << (8 - length)) - 1);
    for (int i = 1; i < length && *at_ != 0; ++i)
      value = (value << 6) + (static_cast<unsigned char>(*at_++) & 0x3FU);
    return value;
  }

  void read_literal(GrammarSequence& sequence) {
    ++at_;
    while (!failure_ && *at_ != '"') {
      const std::uint32_t character = read_character();
      add_terminal(sequence, {kSet, character, character}, 1);
    }
    if (!failure_) ++at_;
  }

  void read_set(GrammarSequence& sequence) {
    ++at_;
    std::vector<std::uint32_t> terminal = {kSet};
    if (*at_ == '^') {
      terminal = {kSetOfOthers};
      ++at_;
    }
    int size = 0;
    while (!failure_ && *at_ != ']') {
      const std::uint32_t low = read_character();
      std::uint32_t high = low;
      ++size;
      if (*at_ == '-' && at_[1] != ']' && !failure_) {
        ++at_;
        high = read_character();
        ++size;
      }
      terminal.insert(terminal.end(), {low, high});
      if (elements_ + size > kMaxElements) charge(size);
    }
    if (failure_) return;
    ++at_;
    if (size > 0) add_terminal(sequence, terminal, size);  // llama.cpp adds no terminal for an empty one
  }

  // Reads <[number]>, or the text of a token between < and >.
  void read_token(GrammarSequence& sequence) {
    std::vector<std::uint32_t> terminal = {kToken};
    if (*at_ == '!') {
      terminal = {kOtherToken};
      ++at_;
    }
    if (*at_ != '<') return fail_here("should have a '<'");
    for (; *at_ != '>'; ++at_) {
      if (*at_ == 0) return fail("ends in the middle of a token");
      terminal.push_back(static_cast<unsigned char>(*at_));
    }
    ++at_;
    add_terminal(sequence, terminal, 1);
  }

  const char* start_;
  const char* at_;  // the next character; 0 at the end of the text
  GrammarTable table_;
  std::map<std::string, int> numbers_;  // the numbers of the rules that the text names
  std::map<std::vector<std::uint32_t>, int> terminals_;
  std::vector<int> terminal_sizes_;
  std::int64_t elements_ = 0, name_bytes_ = 0;
  std::optional<Error> failure_;
};

}  // namespace

Result<GrammarTable> read_grammar(const std::string& gbnf) {
  if (gbnf.find('\0') != std::string::npos) return error("the grammar has a character 0 in it");
  return GrammarReader(gbnf).read();
}

}  // namespace kvant
