#include "eval/retrieval/chat_document.h"

#include <algorithm>
#include <cmath>

#include "model/tokenizer.h"

namespace kvant {

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), after_("\n") {
  const std::string marker = "[the document and its question]";
  const ChatMessage message{"user", marker};
  const auto prompt = tokenizer.chat_prompt({&message, 1});
  const std::size_t at = prompt.ok() ? prompt->find(marker) : std::string::npos;
  if (at == std::string::npos) return;
  before_ = prompt->substr(0, at);
  after_ = prompt->substr(at + marker.size());
}

Result<Tokens> ChatEncoder::opening(const std::string& introduction) const {
  auto tokens = tokenizer_.encode(before_, /*add_special=*/true, /*parse_special=*/true);
  if (!tokens.ok()) return tokens.error();
  const Tokens first_line = plain(introduction);
  tokens->insert(tokens->end(), first_line.begin(), first_line.end());
  return tokens;
}

Result<Tokens> ChatEncoder::prompt(const std::string& question, const std::string& cue) const {
  const auto turn = tokenizer_.encode(after_, /*add_special=*/false, /*parse_special=*/true);
  if (!turn.ok()) return turn.error();
  Tokens prompt = plain("\n\n" + question);
  prompt.insert(prompt.end(), turn->begin(), turn->end());
  const Tokens begun = plain(cue);
  prompt.insert(prompt.end(), begun.begin(), begun.end());
  return prompt;
}

Tokens ChatEncoder::plain(const std::string& text) const {
  return tokenizer_.encode(text, /*add_special=*/false, /*parse_special=*/false).value();
}

Tokens interleave(Tokens opening, const std::vector<Tokens>& sentences, std::vector<PlacedSentence> placed) {
  std::stable_sort(placed.begin(), placed.end(),
                   [](const PlacedSentence& a, const PlacedSentence& b) { return a.depth < b.depth; });
  const auto append = [&](const Tokens& tokens) {
    opening.insert(opening.end(), tokens.begin(), tokens.end());
  };
  auto next = placed.begin();
  for (std::size_t i = 0; i <= sentences.size(); ++i) {
    const auto is_due = [&] {
      return std::lround(next->depth * static_cast<double>(sentences.size())) <= static_cast<long>(i);
    };
    for (; next != placed.end() && is_due(); ++next) append(next->tokens);
    if (i < sentences.size()) append(sentences[i]);
  }
  return opening;
}

}  // namespace kvant
