// GrammarTrigger finds the place in a completion from which a lazy grammar applies, by llama.cpp's rules.
// Only the end of the earlier text is kept, so the search stays fast after a text of any length.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

// GrammarThought describes the thought with which a completion may begin. Text within the thought triggers
// nothing.
struct GrammarThought {
  std::string start;              // the tag that begins a thought; empty if there are no thoughts
  std::vector<std::string> ends;  // texts that end a thought; such a text may itself be a trigger
  bool has_begun = false;         // the thought began before the completion
};

// GrammarTriggerRules says where in a completion the grammar starts to apply. Earlier text is free. Empty
// rules mean that the grammar applies from the start.
struct GrammarTriggerRules {
  std::vector<std::string> words;  // the grammar applies from the first letter of one of these words
  // If a regular expression matches, the grammar applies from the start of the first matched group. A match
  // must fit into the newest kMaxPatternBytes of the text.
  std::vector<std::string> patterns;
  std::vector<std::int32_t> tokens;
  GrammarThought thought = {};

  bool empty() const { return words.empty() && patterns.empty() && tokens.empty(); }
};

class GrammarTrigger {
 public:
  static constexpr std::size_t kMaxPatternBytes = 1024;

  // Returns an error if a pattern is not a regular expression.
  static Result<GrammarTrigger> make(const GrammarTriggerRules& rules);

  bool is_awaited() const { return is_awaited_; }
  // A Token holds the token's number, and its text or the end of its text.
  using Token = std::pair<std::int32_t, std::string>;
  // Takes the next token while the trigger is awaited. If the token completes a trigger, returns the tokens
  // that the grammar must accept, from the start of the trigger on. Otherwise returns nothing.
  std::vector<Token> add(std::int32_t token, const std::string& text);

 private:
  struct Pattern {
    std::regex regex;
    bool is_whole;  // the pattern must match the whole text
  };
  enum class Thought { none, maybe, in };

  // Returns whether text_ may contain a trigger, because no thought is open. Removes a thought that has
  // ended.
  bool leave_thought();
  // Returns the position of a trigger in text_, or npos if there is none.
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
  bool is_cut_ = false;        // true if text precedes tokens_
};

}  // namespace kvant
