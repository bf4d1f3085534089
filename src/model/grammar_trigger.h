// GrammarTrigger finds where a lazy grammar begins to hold, by llama.cpp's rules. Only the end of the
// preceding text is kept, so the search stays fast after any length.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

// The thought with which a completion may begin. No text in it is a trigger.
struct GrammarThought {
  std::string start;              // the tag that begins a thought; empty: there are no thoughts
  std::vector<std::string> ends;  // texts that end a thought; they may be triggers themselves
  bool has_begun = false;         // the thought began before the completion
};

// Says from which text on a grammar holds; earlier text is free. Empty: it holds from the start.
struct GrammarTriggerRules {
  std::vector<std::string> words;  // it holds from their first letter on
  // For regular expressions it holds from the first group's match on. A match ends within kMaxPatternBytes.
  std::vector<std::string> patterns;
  std::vector<std::int32_t> tokens;
  GrammarThought thought = {};

  bool empty() const { return words.empty() && patterns.empty() && tokens.empty(); }
};

class GrammarTrigger {
 public:
  static constexpr std::size_t kMaxPatternBytes = 1024;

  // Error: a pattern is not a regular expression.
  static Result<GrammarTrigger> make(const GrammarTriggerRules& rules);

  bool is_awaited() const { return is_awaited_; }
  using Token = std::pair<std::int32_t, std::string>;  // its number, and its text or the end of it
  // Takes the next token while the trigger is awaited. Returns the tokens that the grammar must take, once it
  // holds.
  std::vector<Token> add(std::int32_t token, const std::string& text);

 private:
  struct Pattern {
    std::regex regex;
    bool is_whole;  // it begins and ends where the text does
  };
  enum class Thought { none, maybe, in };

  // Returns whether text_ may contain a trigger because it is not within a thought. A thought that has ended
  // is removed.
  bool leave_thought();
  // Returns the position in text_; npos: there is no trigger.
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
  std::vector<Token> tokens_;  // the newest tokens, in which a trigger may have begun
  std::string text_;           // the text of tokens_
  bool is_cut_ = false;        // text came before them
};

}  // namespace kvant
