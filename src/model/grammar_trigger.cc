#include "model/grammar_trigger.h"

#include <algorithm>

namespace kvant {
namespace {

// Of the first group that has matched something, or of the whole match.
std::size_t start_of(const std::smatch& match) {
  for (std::size_t i = 1; i < match.size(); ++i) {
    if (match.length(i) > 0) return match.position(i);
  }
  return match.position(0);
}

}  // namespace

Result<GrammarTrigger> GrammarTrigger::make(const std::vector<std::string>& patterns,
                                            std::vector<std::int32_t> tokens) {
  GrammarTrigger trigger;
  try {
    for (const std::string& pattern : patterns)
      trigger.patterns_.push_back({std::regex(pattern), pattern.starts_with('^') && pattern.ends_with('$')});
  } catch (const std::regex_error& e) {
    return error("the grammar can't be used: {}", e.what());
  }
  trigger.trigger_tokens_ = std::move(tokens);
  trigger.is_awaited_ = !trigger.patterns_.empty() || !trigger.trigger_tokens_.empty();
  return trigger;
}

std::vector<GrammarTrigger::Token> GrammarTrigger::add(std::int32_t token, const std::string& text) {
  if (std::ranges::find(trigger_tokens_, token) != trigger_tokens_.end()) {
    is_awaited_ = false;
    return {{token, text}};
  }
  tokens_.emplace_back(token, text);
  text_ += text;
  for (const Pattern& pattern : patterns_) {
    std::smatch match;
    if (!(pattern.is_whole && std::regex_match(text_, match, pattern.regex)) &&
        !std::regex_search(text_, match, pattern.regex))
      continue;
    is_awaited_ = false;
    return tokens_from(start_of(match));
  }
  return {};
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

}  // namespace kvant
