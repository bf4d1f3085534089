#include "serve/schema_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "model/grammar_rules.h"

namespace kvant {
namespace {

using PatternRanges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

constexpr std::uint32_t kLastCharacter = 0x10FFFF;
constexpr int kMaxGroups = 64;  // the reader recurses once per nested group
constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::int64_t kVeryLong = std::int64_t{1} << 40;

PatternRanges sorted_ranges(PatternRanges ranges) {
  std::ranges::sort(ranges);
  PatternRanges merged;
  for (const auto& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

PatternRanges other_ranges(const PatternRanges& ranges) {
  PatternRanges others;
  std::uint32_t next = 0;
  for (const auto& [low, high] : sorted_ranges(ranges)) {
    if (low > next) others.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCharacter) others.emplace_back(next, kLastCharacter);
  return others;
}

void append_ranges(PatternRanges& to, const PatternRanges& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// \d, \w and \s mean ASCII characters in ECMA 262 and all of Unicode in other dialects. A generated string
// must match under both meanings. `surely` holds the characters that match under both meanings, and `perhaps`
// adds characters that match under only one.
struct PatternClass {
  PatternRanges surely, perhaps;
};

PatternClass class_of(char letter) {
  const PatternRanges digits = {{'0', '9'}};
  const PatternRanges no_digits = {
      {0x20, 0x2F}, {0x3A, 0x7E}, {0xA0, 0x65F}, {0x3000, 0xA61F}, {0xAC00, 0xD7A3}};
  const PatternRanges word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  const PatternRanges no_word = {{0x20, 0x2F}, {0x3A, 0x40}, {0x5B, 0x5E}, {0x60, 0x60}, {0x7B, 0x7E}};
  const PatternRanges space = {{'\t', '\r'}, {' ', ' '}};
  const PatternRanges no_space = {{0x21, 0x7E},     {0xA1, 0x167F},          {0x1681, 0x1FFF},
                                  {0x2030, 0x205E}, {0x2060, 0x2FFF},        {0x3001, 0xD7FF},
                                  {0xE000, 0xFEFE}, {0xFF00, kLastCharacter}};
  switch (letter) {
    case 'd':
      return {digits, other_ranges(no_digits)};
    case 'D':
      return {no_digits, other_ranges(digits)};
    case 'w':
      return {word, other_ranges(no_word)};
    case 'W':
      return {no_word, other_ranges(word)};
    case 's':
      return {space, other_ranges(no_space)};
    default:
      return {no_space, other_ranges(space)};
  }
}

const PatternRanges& any_characters() {
  static const PatternRanges kAny = {{0, kLastCharacter}};
  return kAny;
}

// Decodes UTF-8. The text should be valid, because continuation bytes are not checked. A continuation byte
// without a first byte becomes the character of the same number.
std::u32string characters_of(const std::string& text) {
  std::u32string characters;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const int n = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    char32_t c = n == 1 ? byte : byte & (0xFF >> (n + 1));
    for (int k = 1; k < n && i + k < text.size(); ++k)
      c = (c << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3F);
    characters += c;
    i += n;
  }
  return characters;
}

std::string set_text(const PatternRanges& ranges) {
  const auto character = [](std::uint32_t c) {
    return c < 0x100     ? fmt::format("\\x{:02X}", c)
           : c < 0x10000 ? fmt::format("\\u{:04X}", c)
                         : fmt::format("\\U{:08X}", c);
  };
  std::string set = "[";
  for (const auto& [low, high] : ranges) set += character(low) + (high > low ? "-" + character(high) : "");
  return set + "]";
}

// Writes a set of characters in the form of a JSON string, in which some characters need a backslash.
std::string json_set_text(const PatternRanges& ranges) {
  const PatternRanges own = sorted_ranges(ranges);
  PatternRanges plain, escaped;
  for (const auto& [first, last] :
       PatternRanges{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}, {0x80, 0xD7FF}, {0xE000, kLastCharacter}}) {
    for (const auto& [low, high] : own) {
      if (std::max(low, first) <= std::min(high, last))
        plain.emplace_back(std::max(low, first), std::min(high, last));
    }
  }
  for (const auto& [character, letter] : PatternRanges{
           {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}) {
    for (const auto& [low, high] : own) {
      if (low <= character && character <= high) escaped.emplace_back(letter, letter);
    }
  }
  const std::string after_backslash = escaped.empty() ? "" : "[\\x5C]" + set_text(escaped);
  if (plain.empty()) return after_backslash.empty() ? "" : "(" + after_backslash + ")";
  if (escaped.empty()) return set_text(plain);
  return "(" + set_text(plain) + "|" + after_backslash + ")";
}

}  // namespace

// PatternReader parses a regular expression by recursive descent.
class PatternReader {
 public:
  using Node = SchemaPattern::Node;
  using Kind = Node::Kind;

  explicit PatternReader(const std::string& source) : source_(characters_of(source)) {}

  Result<Node> read() {
    Node node = read_choice(0);
    if (failure_.ok() && at_ < source_.size()) fail("has a ')' without a '('");
    if (!failure_.ok()) return failure_.error();
    return node;
  }

 private:
  void fail(const std::string& what) {
    if (failure_.ok()) failure_ = error("{}", what);
    at_ = source_.size();
  }
  bool is_at(char32_t c) const { return at_ < source_.size() && source_[at_] == c; }
  bool skip(const char32_t* text) {
    const std::u32string_view wanted = text;
    if (source_.compare(at_, wanted.size(), wanted) != 0) return false;
    at_ += wanted.size();
    return true;
  }

  Node read_choice(int depth) {
    if (depth > kMaxGroups) fail("has groups that are nested too deeply");
    Node choice{.kind = Kind::choice};
    choice.parts.push_back(read_sequence(depth));
    while (is_at('|')) {
      ++at_;
      choice.parts.push_back(read_sequence(depth));
    }
    return choice.parts.size() == 1 ? Node(choice.parts.front()) : choice;
  }

  Node read_sequence(int depth) {
    Node sequence{.kind = Kind::sequence};
    while (at_ < source_.size() && !is_at('|') && !is_at(')')) {
      const std::size_t begin = at_;
      Node atom = read_atom(depth);
      if (!failure_.ok()) break;
      if (std::optional<Node> repeated = read_repetition(atom)) atom = *std::move(repeated);
      if (at_ == begin) fail("can't be read");
      sequence.parts.push_back(std::move(atom));
    }
    return sequence;
  }

  // Makes a node for a set of characters. An empty set is an error. A set of control characters that JSON can
  // only write as \u is also an error.
  Node set(PatternRanges ranges) {
    if (json_set_text(ranges).empty()) fail("has a set of characters that a string can't have");
    return {.kind = Kind::set, .ranges = sorted_ranges(std::move(ranges)), .parts = {}};
  }

  Node read_atom(int depth) {
    const char32_t c = source_[at_++];
    switch (c) {
      case '^':
        return {.kind = Kind::begin};
      case '$':
        return {.kind = Kind::end};
      case '.':
        return set(other_ranges({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '(':
        return read_group(depth);
      case '[':
        return read_set();
      case '\\':
        return set(read_escape(/*in_set=*/false).surely);
      case '*':
      case '+':
      case '?':
        fail("repeats nothing");
        return {};
      default:
        return set({{c, c}});
    }
  }

  Node read_group(int depth) {
    if (skip(U"?<") && !is_at('=') && !is_at('!')) {
      while (at_ < source_.size() && !is_at('>')) ++at_;  // skips the group's name
      ++at_;
    } else if (source_[at_ - 1] == '<') {
      fail("looks behind, which a grammar does not support");
    } else if (is_at('?') && !skip(U"?:")) {
      fail("looks ahead or sets flags, which a grammar does not support");
    }
    Node group = read_choice(depth + 1);
    if (!is_at(')')) fail("has a '(' without a ')'");
    ++at_;
    return group;
  }

  std::optional<std::int64_t> read_number() {
    if (at_ >= source_.size() || source_[at_] < '0' || source_[at_] > '9') return std::nullopt;
    std::int64_t number = 0;
    for (; at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '9'; ++at_)
      number = std::min<std::int64_t>(10 * number + (source_[at_] - '0'), kMaxGrammarRepetitions + 1);
    return number;
  }

  std::optional<Node> read_repetition(Node& atom) {
    Node repeated{.kind = Kind::repetition};
    const std::size_t begin = at_;
    if (is_at('*') || is_at('+') || is_at('?')) {
      repeated.least = is_at('+') ? 1 : 0;
      repeated.most = is_at('?') ? 1 : -1;
      ++at_;
    } else if (is_at('{')) {
      ++at_;
      const auto least = read_number();
      repeated.least = least.value_or(0);
      repeated.most = repeated.least;
      if (is_at(',')) {
        ++at_;
        repeated.most = read_number().value_or(-1);
      }
      if (!least || !is_at('}')) {  // braces without a count stand for themselves
        at_ = begin;
        return std::nullopt;
      }
      ++at_;
    } else {
      return std::nullopt;
    }
    if (is_at('?')) ++at_;  // a lazy repetition matches the same strings
    if (is_at('*') || is_at('+') || is_at('?')) fail("repeats a repetition");
    if (std::max(repeated.least, repeated.most) > kMaxGrammarRepetitions)
      fail(fmt::format("has a count that is above {}", kMaxGrammarRepetitions));
    if (repeated.most >= 0 && repeated.most < repeated.least) fail("has a count that ends before it begins");
    if (atom.kind == Kind::begin || atom.kind == Kind::end) fail("repeats an anchor");
    repeated.parts.push_back(std::move(atom));
    return repeated;
  }

  // Reads the character or class after a backslash.
  PatternClass read_escape(bool in_set) {
    const auto one = [](char32_t c) { return PatternClass{{{c, c}}, {{c, c}}}; };
    if (at_ >= source_.size()) {
      fail("ends with a backslash");
      return {};
    }
    const char32_t c = source_[at_++];
    switch (c) {
      case 'd':
      case 'D':
      case 'w':
      case 'W':
      case 's':
      case 'S':
        return class_of(static_cast<char>(c));
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return one(read_hex(2));
      case 'u':
        return one(read_unicode());
      case 'b':
        if (in_set) return one('\b');
        [[fallthrough]];
      default:
        break;
    }
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (is_letter) fail(fmt::format("has '\\{}', which a grammar does not support", static_cast<char>(c)));
    return one(c);
  }

  std::uint32_t read_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char32_t c = at_ < source_.size() ? source_[at_] : U' ';
      const std::uint32_t digit = c >= '0' && c <= '9'   ? c - '0'
                                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                         : 16;
      if (digit == 16) {
        fail("has an escape without its hexadecimal digits");
        return 0;
      }
      value = (16 * value) + digit;
    }
    return value;
  }

  std::uint32_t read_unicode() {
    if (is_at('{')) {
      std::uint32_t value = 0;
      for (++at_; at_ < source_.size() && !is_at('}') && value <= kLastCharacter;)
        value = (16 * value) + read_hex(1);
      if (value > kLastCharacter) fail("has an invalid character");
      ++at_;
      return value;
    }
    const std::uint32_t unit = read_hex(4);
    if (unit >= 0xD800 && unit < 0xDC00 && skip(U"\\u"))
      return 0x10000 + ((unit - 0xD800) << 10) + ((read_hex(4) - 0xDC00) & 0x3FF);
    return unit;
  }

  Node read_set() {
    const bool is_negated = is_at('^');
    if (is_negated) ++at_;
    PatternRanges surely, perhaps;
    while (at_ < source_.size() && !is_at(']')) {
      const auto [first, first_is_class] = read_member();
      const bool is_range = is_at('-') && at_ + 1 < source_.size() && source_[at_ + 1] != ']';
      if (!is_range || first_is_class) {
        append_ranges(surely, first.surely);
        append_ranges(perhaps, first.perhaps);
        continue;
      }
      ++at_;
      const auto [last, last_is_class] = read_member();
      if (!failure_.ok()) return {};
      if (last_is_class) {
        append_ranges(surely, {{'-', '-'}});
        append_ranges(surely, first.surely);
        append_ranges(surely, last.surely);
        append_ranges(perhaps, {{'-', '-'}});
        append_ranges(perhaps, first.perhaps);
        append_ranges(perhaps, last.perhaps);
      } else if (last.surely.front().first < first.surely.front().first) {
        fail("has a range that ends before it begins");
      } else {
        surely.emplace_back(first.surely.front().first, last.surely.front().first);
        perhaps.push_back(surely.back());
      }
    }
    if (!is_at(']')) fail("has a '[' without a ']'");
    ++at_;
    return set(is_negated ? other_ranges(perhaps) : surely);
  }

  std::pair<PatternClass, bool> read_member() {
    const char32_t c = source_[at_++];
    if (c != '\\') return {{{{c, c}}, {{c, c}}}, false};
    const char32_t letter = at_ < source_.size() ? source_[at_] : U' ';
    PatternClass read = read_escape(/*in_set=*/true);
    if (read.surely.empty()) read = {{{0, 0}}, {{0, 0}}};  // this happens only after an error
    return {std::move(read), std::u32string_view(U"dDwWsS").find(letter) != std::u32string_view::npos};
  }

  std::u32string source_;
  std::size_t at_ = 0;
  Status failure_;
};

Result<SchemaPattern> SchemaPattern::parse(const std::string& source) {
  if (source.size() > kMaxPatternBytes) return error("has more than {} bytes", kMaxPatternBytes);
  auto read = PatternReader(source).read();
  if (!read.ok()) return read.error();
  const Node any{.kind = Node::Kind::set, .ranges = any_characters(), .parts = {}};
  const Node padding{.kind = Node::Kind::repetition, .ranges = {}, .parts = {any}};
  const auto unwrap = [](Node node) {  // removes groups around the whole expression
    while (node.kind == Node::Kind::sequence && node.parts.size() == 1 &&
           (node.parts[0].kind == Node::Kind::sequence || node.parts[0].kind == Node::Kind::choice))
      node = Node(node.parts[0]);
    return node;
  };
  SchemaPattern pattern;
  std::vector<Node> choices = alternatives(unwrap(*std::move(read)));
  for (Node& choice : choices) {
    choice = unwrap(std::move(choice));
    if (choice.kind != Node::Kind::sequence) choice = Node{.ranges = {}, .parts = {choice}};
    const bool begins = !choice.parts.empty() && choice.parts.front().kind == Node::Kind::begin;
    if (begins) choice.parts.erase(choice.parts.begin());
    const bool ends = !choice.parts.empty() && choice.parts.back().kind == Node::Kind::end;
    if (ends) choice.parts.pop_back();
    if (!begins) choice.parts.insert(choice.parts.begin(), padding);
    if (!ends) choice.parts.push_back(padding);
    if (size(choice) < 0) return error("has an anchor inside, which a grammar does not support");
    for (Node& alternative : alternatives(unwrap(std::move(choice)))) {
      Node flat;
      flatten(std::move(alternative), flat.parts);
      pattern.choices_.push_back(std::move(flat));
    }
  }
  return pattern;
}

std::vector<SchemaPattern::Node> SchemaPattern::alternatives(Node node) {
  if (node.kind == Node::Kind::choice) return std::move(node.parts);
  std::vector<Node> one;
  one.push_back(std::move(node));
  return one;
}

// Appends the parts of a sequence to `parts`. A nested sequence is replaced by its parts.
void SchemaPattern::flatten(Node node, std::vector<Node>& parts) {
  if (node.kind != Node::Kind::sequence) {
    parts.push_back(std::move(node));
    return;
  }
  for (Node& part : node.parts) flatten(std::move(part), parts);
}

SchemaPattern SchemaPattern::any_string(std::int64_t least, std::int64_t most) {
  const Node any{.kind = Node::Kind::set, .ranges = any_characters(), .parts = {}};
  SchemaPattern pattern;
  pattern.choices_.push_back(
      {.ranges = {},
       .parts = {
           {.kind = Node::Kind::repetition, .ranges = {}, .parts = {any}, .least = least, .most = most}}});
  return pattern;
}

SchemaPattern::Lengths SchemaPattern::lengths(const Node& node) {
  if (node.kind == Node::Kind::set) return {1, 1};
  Lengths sum = {node.kind == Node::Kind::choice ? kVeryLong : 0, 0};
  for (const Node& part : node.parts) {
    const Lengths one = lengths(part);
    if (node.kind == Node::Kind::choice) {
      sum.least = std::min(sum.least, one.least);
      sum.most = sum.most < 0 || one.most < 0 ? -1 : std::max(sum.most, one.most);
    } else {
      sum.least = std::min(sum.least + one.least, kVeryLong);
      sum.most = sum.most < 0 || one.most < 0 ? -1 : std::min(sum.most + one.most, kVeryLong);
    }
  }
  if (node.kind == Node::Kind::repetition) {
    sum.least = std::min(sum.least * node.least, kVeryLong);
    sum.most = sum.most == 0                   ? 0
               : sum.most < 0 || node.most < 0 ? -1
                                               : std::min(sum.most * node.most, kVeryLong);
  }
  return sum;
}

// Returns the approximate number of grammar symbols of a node, or -1 if the node contains an anchor.
std::int64_t SchemaPattern::size(const Node& node) {
  if (node.kind == Node::Kind::begin || node.kind == Node::Kind::end) return -1;
  if (node.kind == Node::Kind::set) return 8 + std::ssize(node.ranges);
  std::int64_t sum = 2;
  for (const Node& part : node.parts) {
    const std::int64_t one = size(part);
    if (one < 0) return -1;
    sum = std::min(sum + one, kVeryLong);
  }
  if (node.kind == Node::Kind::repetition) sum += 4 * std::max(node.least, node.most);
  return std::min(sum, kVeryLong);
}

std::int64_t SchemaPattern::size() const {
  std::int64_t sum = 2;
  for (const Node& choice : choices_) sum += size(choice);
  return sum;
}

Status SchemaPattern::bound_length(std::int64_t least, std::int64_t most) {
  const auto is_within = [&](const Lengths& own) {
    return own.least >= least && (most < 0 || (own.most >= 0 && own.most <= most));
  };
  std::vector<Node> kept;
  for (Node& choice : choices_) {
    const Lengths all = lengths(choice);
    if (is_within(all)) {
      kept.push_back(std::move(choice));
      continue;
    }
    if ((all.most >= 0 && all.most < least) || (most >= 0 && all.least > most)) continue;
    Node* variable = nullptr;
    std::int64_t fixed = 0;
    for (Node& part : choice.parts) {
      const Lengths own = lengths(part);
      if (own.least == own.most) {
        fixed += own.least;
      } else if (variable == nullptr) {
        variable = &part;
      } else {
        return error("has a length together with a 'pattern' of several parts that vary in length");
      }
    }
    const Lengths unit =
        variable->kind == Node::Kind::repetition ? lengths(variable->parts.front()) : Lengths{0, -1};
    if (unit.least != unit.most)
      return error("has a length together with a 'pattern' whose parts vary in length");
    const auto rounded_up = [&](std::int64_t n) {
      return (std::max<std::int64_t>(n, 0) + unit.least - 1) / unit.least;
    };
    variable->least = std::max(variable->least, rounded_up(least - fixed));
    if (most >= 0) {
      const std::int64_t longest = (most - fixed) / unit.least;
      variable->most = variable->most < 0 ? longest : std::min(variable->most, longest);
      if (variable->most < variable->least) continue;
    }
    kept.push_back(std::move(choice));
  }
  choices_ = std::move(kept);
  for (const Node& choice : choices_) {
    for (const Node& part : choice.parts) {
      if (part.kind == Node::Kind::repetition && std::max(part.least, part.most) > kMaxGrammarRepetitions)
        return error("has a length above {}", kMaxGrammarRepetitions);
    }
  }
  return {};
}

// Returns the node's pattern for JSON text. The text is empty if the node matches only the empty string.
std::string SchemaPattern::text(const Node& node) {
  if (node.kind == Node::Kind::set) return json_set_text(node.ranges);
  if (node.kind == Node::Kind::repetition) {
    const std::string unit = text(node.parts.front());
    if (unit.empty() || node.most == 0) return "";
    const std::string group =
        unit.front() == '(' && node.parts.front().kind == Node::Kind::set ? unit : "(" + unit + ")";
    const bool is_set = unit.front() == '[' && node.parts.front().kind == Node::Kind::set;
    const std::string& repeated = is_set ? unit : group;
    if (node.least == 1 && node.most == 1) return repeated;
    if (node.least == 0 && node.most == 1) return repeated + "?";
    if (node.most < 0 && node.least <= 1) return repeated + (node.least == 0 ? "*" : "+");
    return fmt::format("{}{{{},{}}}", repeated, node.least, node.most < 0 ? "" : std::to_string(node.most));
  }
  if (node.kind == Node::Kind::sequence) {
    std::string all;
    for (const Node& part : node.parts) all += text(part);
    return all;
  }
  std::vector<std::string> each;
  bool may_be_empty = false;
  for (const Node& part : node.parts) {
    const std::string one = text(part);
    if (one.empty()) {
      may_be_empty = true;
    } else if (std::ranges::find(each, one) == each.end()) {
      each.push_back(one);
    }
  }
  return each.empty() ? "" : fmt::format("({}){}", fmt::join(each, "|"), may_be_empty ? "?" : "");
}

std::string SchemaPattern::json_pattern() const {
  return "^" + text({.kind = Node::Kind::choice, .ranges = {}, .parts = choices_}) + "$";
}

// Matcher follows all positions at which a part of an expression can end at the same time. The matcher's time
// is therefore bounded, while backtracking can take exponential time.
class SchemaPattern::Matcher {
 public:
  explicit Matcher(std::u32string text) : text_(std::move(text)) {}

  bool matches(const Node& sequence) {
    Places start(text_.size() + 1);
    start[0] = true;
    return follow(sequence, start)[text_.size()] && work_ < kMaxWork;
  }

 private:
  using Places = std::vector<bool>;
  static constexpr std::int64_t kMaxWork = 20'000'000;

  Places follow(const Node& node, const Places& from) {
    Places to(from.size());
    work_ += std::ssize(from);
    if (work_ >= kMaxWork) return to;
    if (node.kind == Node::Kind::set) {
      for (std::size_t i = 0; i < text_.size(); ++i) {
        if (from[i] && std::ranges::any_of(node.ranges, [c = text_[i]](const Range& range) {
              return range.first <= c && c <= range.second;
            }))
          to[i + 1] = true;
      }
    } else if (node.kind == Node::Kind::choice) {
      for (const Node& part : node.parts) add(follow(part, from), to);
    } else if (node.kind == Node::Kind::sequence) {
      to = from;
      for (const Node& part : node.parts) to = follow(part, to);
    } else {
      to = repeat(node, from);
    }
    return to;
  }

  Places repeat(const Node& node, Places from) {
    for (std::int64_t i = 0; i < node.least; ++i) {
      Places next = follow(node.parts.front(), from);
      if (next == from) break;
      from = std::move(next);
    }
    Places all = from;
    for (std::int64_t i = node.least; node.most < 0 || i < node.most; ++i) {
      from = follow(node.parts.front(), from);
      if (!add(from, all)) break;
    }
    return all;
  }

  static bool add(const Places& more, Places& to) {
    bool is_new = false;
    for (std::size_t i = 0; i < to.size(); ++i) {
      is_new = is_new || (more[i] && !to[i]);
      to[i] = to[i] || more[i];
    }
    return is_new;
  }

  std::u32string text_;
  std::int64_t work_ = 0;
};

bool SchemaPattern::matches(const std::string& text) const {
  Matcher matcher(characters_of(text));
  return std::ranges::any_of(choices_, [&](const Node& choice) { return matcher.matches(choice); });
}

}  // namespace kvant
