#include "model/grammar_trigger.h"

#include <algorithm>
#include <string_view>

namespace kvant {
namespace {

// Returns the start of the first group that matched some text. If no group did, returns the start of the
// whole match.
std::size_t start_of(const std::smatch& match) {
  for (std::size_t i = 1; i < match.size(); ++i) {
    if (match.length(i) > 0) return match.position(i);
  }
  return match.position(0);
}

}  // namespace

Result<GrammarTrigger> GrammarTrigger::make(const GrammarTriggerRules& rules) {
  GrammarTrigger trigger;
  try {
    for (const std::string& pattern : rules.patterns)
      trigger.patterns_.push_back({std::regex(pattern), pattern.starts_with('^') && pattern.ends_with('$')});
  } catch (const std::regex_error& e) {
    return error("the grammar can't be used: {}", e.what());
  }
  trigger.words_ = rules.words;
  std::erase(trigger.words_, "");
  for (const std::string& word : trigger.words_)
    trigger.max_kept_bytes_ = std::max(trigger.max_kept_bytes_, word.size());
  if (!trigger.patterns_.empty())
    trigger.max_kept_bytes_ = std::max(trigger.max_kept_bytes_, kMaxPatternBytes);
  trigger.trigger_tokens_ = rules.tokens;
  trigger.tags_ = rules.thought;
  if (!rules.thought.start.empty()) trigger.thought_ = rules.thought.has_begun ? Thought::in : Thought::maybe;
  for (const std::string& end : rules.thought.ends)
    trigger.max_kept_bytes_ = std::max(trigger.max_kept_bytes_, end.size());
  trigger.is_awaited_ =
      !trigger.words_.empty() || !trigger.patterns_.empty() || !trigger.trigger_tokens_.empty();
  return trigger;
}

std::vector<GrammarTrigger::Token> GrammarTrigger::add(std::int32_t token, const std::string& text) {
  tokens_.emplace_back(token, text);
  text_ += text;
  if (!leave_thought()) {
    keep_the_end();
    return {};
  }
  if (std::ranges::find(trigger_tokens_, token) != trigger_tokens_.end()) {
    is_awaited_ = false;
    return {{token, text}};
  }
  if (const std::size_t start = start_of_trigger(); start != std::string::npos) {
    is_awaited_ = false;
    return tokens_from(start);
  }
  keep_the_end();
  return {};
}

bool GrammarTrigger::leave_thought() {
  if (thought_ == Thought::maybe) {
    const std::size_t at = std::min(text_.find_first_not_of(" \t\r\n"), text_.size());
    const std::string_view begin = std::string_view(text_).substr(at);
    if (begin.starts_with(tags_.start)) {
      thought_ = Thought::in;
    } else if (!tags_.start.starts_with(begin)) {
      thought_ = Thought::none;
    }
  }
  if (thought_ != Thought::in) return true;
  std::size_t end = std::string::npos;
  for (const std::string& tag : tags_.ends) end = std::min(end, text_.find(tag));
  if (end == std::string::npos) return false;
  thought_ = Thought::none;
  tokens_ = tokens_from(end);
  text_.erase(0, end);
  is_cut_ = true;
  return true;
}

std::size_t GrammarTrigger::start_of_trigger() const {
  std::size_t start = std::string::npos;
  for (const std::string& word : words_) start = std::min(start, text_.find(word));
  for (const Pattern& pattern : patterns_) start = std::min(start, start_of_match(pattern));
  return start;
}

std::size_t GrammarTrigger::start_of_match(const Pattern& pattern) const {
  std::smatch match;
  if (pattern.is_whole && !is_cut_ && std::regex_match(text_, match, pattern.regex)) return start_of(match);
  // Without match_not_bol, a pattern's ^ would match the start of the kept text, which is not the start of
  // the whole text.
  const auto flags = is_cut_ ? std::regex_constants::match_not_bol : std::regex_constants::match_default;
  return std::regex_search(text_, match, pattern.regex, flags) ? start_of(match) : std::string::npos;
}

std::vector<GrammarTrigger::Token> GrammarTrigger::tokens_from(std::size_t start) const {
  std::vector<Token> from;
  std::size_t at = 0;
  for (const auto& [token, text] : tokens_) {
    const std::size_t end = at + text.size();
    if (end > start) from.emplace_back(token, text.substr(start > at ? start - at : 0));
    at = end;
  }
  return from;
}

void GrammarTrigger::keep_the_end() {
  std::size_t n_tokens = 0, n_bytes = 0;
  while (n_tokens < tokens_.size() &&
         text_.size() - n_bytes >= max_kept_bytes_ + tokens_[n_tokens].second.size())
    n_bytes += tokens_[n_tokens++].second.size();
  if (n_tokens == 0) return;
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
  text_.erase(0, n_bytes);
  is_cut_ = true;
}

}  // namespace kvant
