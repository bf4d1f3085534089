// GrammarTrigger: from where on a grammar holds that is lazy (llama.cpp's rules for it). Looking for it takes
// no longer, however long the text is that comes before: of that text the end is kept alone.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

// The thought that a completion may begin with: text in which nothing is a trigger.
struct GrammarThought {
  std::string start;              // the tag that a thought begins with; empty: there are no thoughts
  std::vector<std::string> ends;  // what ends a thought; may itself be a trigger
  bool has_begun = false;         // before the completion
};

// Where a grammar holds only from a certain text on: what comes before is free. Empty: from the start.
struct GrammarTriggerRules {
  std::vector<std::string> words;  // from their first letter on
  // Regular expressions: from the first group's match on. What they match ends within kMaxPatternBytes.
  std::vector<std::string> patterns;
  std::vector<std::int32_t> tokens;
  GrammarThought thought = {};

  bool empty() const { return words.empty() && patterns.empty() && tokens.empty(); }
};

class GrammarTrigger {
 public:
  static constexpr std::size_t kMaxPatternBytes = 1024;

  // An error: a pattern that is no regular expression.
  static Result<GrammarTrigger> make(const GrammarTriggerRules& rules);

  bool is_awaited() const { return is_awaited_; }
  using Token = std::pair<std::int32_t, std::string>;  // its number and its text, or the end of it
  // The next token while it is awaited. What the grammar has to take, once it holds.
  std::vector<Token> add(std::int32_t token, const std::string& text);

 private:
  struct Pattern {
    std::regex regex;
    bool is_whole;  // it begins and ends where the text does
  };
  enum class Thought { none, maybe, in };

  // Whether text_ may have a trigger: it is not within a thought. A thought that has ended is taken away.
  bool leave_thought();
  // In text_; npos: nowhere.
  std::size_t start_of_trigger() const;
  std::size_t start_of_match(const Pattern& pattern) const;
  std::vector<Token> tokens_from(std::size_t start) const;
  void keep_the_end();

  std::vector<std::string> words_;
  std::vector<Pattern> patterns_;
  std::vector<std::int32_t> trigger_tokens_;
  GrammarThought tags_;
  Thought thought_ = Thought::none;
  std::size_t max_kept_bytes_ = 0;
  bool is_awaited_ = false;
  std::vector<Token> tokens_;  // the latest, with which a trigger may have begun
  std::string text_;           // theirs
  bool is_cut_ = false;        // there was text before them
};

}  // namespace kvant
