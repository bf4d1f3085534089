#include "chat/control_tokens.h"

#include <llama.h>

#include <algorithm>

namespace kvant {

ControlTokens::ControlTokens(const llama_vocab* vocabulary) {
  constexpr int kControl = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
  for (llama_token token = 0; token < llama_vocab_n_tokens(vocabulary); ++token) {
    const int attributes = llama_vocab_get_attr(vocabulary, token);
    if ((attributes & kControl) == 0) continue;
    add(llama_vocab_get_text(vocabulary, token),
        {token, (attributes & LLAMA_TOKEN_ATTR_LSTRIP) != 0, (attributes & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
  }
}

void ControlTokens::add(const std::string& text, const ControlToken& token) {
  if (text.empty()) return;
  tokens_.emplace(text, token);
  std::vector<std::size_t>& lengths = lengths_[text.front()];
  const auto place = std::ranges::lower_bound(lengths, text.size(), std::greater());
  if (place == lengths.end() || *place != text.size()) lengths.insert(place, text.size());
}

ControlTokens::Match ControlTokens::at(std::string_view text, std::size_t position) const {
  const auto lengths = lengths_.find(text[position]);
  if (lengths == lengths_.end()) return {};
  for (const std::size_t length : lengths->second) {
    if (length > text.size() - position) continue;
    const auto found = tokens_.find(std::string(text.substr(position, length)));
    if (found != tokens_.end()) return {length, found->second};
  }
  return {};
}

bool ControlTokens::occur_in(std::string_view text) const {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (at(text, i).length > 0) return true;
  }
  return false;
}

}  // namespace kvant
