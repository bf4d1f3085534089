#include "eval/retrieval/chat_document.h"

#include <algorithm>
#include <cmath>

#include "chat/chat_history.h"
#include "model/tokenizer.h"

namespace kvant {

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), after_("\n") {
  auto opened = ChatTemplate::open(tokenizer, "");
  if (!opened.ok()) return;
  const std::string marker = "[the document and its question]";
  ChatHistory history;
  history.add("user", marker);
  const auto prompt = (*opened)->write(history.json);
  const std::size_t at = prompt.ok() ? prompt->text.find(marker) : std::string::npos;
  if (at == std::string::npos) return;
  template_ = std::move(opened).value();
  before_ = prompt->text.substr(0, at);
  after_ = prompt->text.substr(at + marker.size());
}

Result<Tokens> ChatEncoder::opening(const std::string& introduction) const {
  auto tokens = template_ == nullptr ? tokenizer_.encode("", /*add_special=*/true, /*parse_special=*/true)
                                     : template_->encode({before_, {}});
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
