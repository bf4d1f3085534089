#include "eval/retrieval/haystack.h"

#include <algorithm>
#include <cctype>

#include "model/tokenizer.h"

namespace kvant {
namespace {

// Sentences have at most kLongestSentence tokens. Facts are placed between sentences, so long sentences would
// make their depths imprecise.
constexpr std::size_t kLongestSentence = 64;

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

// Returns whether a sentence ends with text[i].
bool ends_sentence(const std::string& text, std::size_t i) {
  if (text[i] == '\n') return true;
  const bool stop = text[i] == '.' || text[i] == '!' || text[i] == '?';
  return stop && (i + 1 == text.size() || is_space(text[i + 1]));
}

std::string trimmed(const std::string& text) {
  const auto first = std::find_if_not(text.begin(), text.end(), is_space);
  const auto last = std::find_if_not(text.rbegin(), text.rend(), is_space).base();
  return first < last ? std::string(first, last) : "";
}

std::vector<std::string> split_sentences(const std::string& text) {
  std::vector<std::string> sentences;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!ends_sentence(text, i) && i + 1 < text.size()) continue;
    std::string sentence = trimmed(text.substr(start, i + 1 - start));
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
    start = i + 1;
  }
  return sentences;
}

}  // namespace

Result<Haystack> Haystack::from(const Tokenizer& tokenizer, const std::string& text) {
  Haystack haystack;
  for (const std::string& sentence : split_sentences(text)) {
    const auto tokens = tokenizer.encode(" " + sentence, /*add_special=*/false, /*parse_special=*/false);
    if (!tokens.ok()) return tokens.error();
    for (std::size_t start = 0; start < tokens->size(); start += kLongestSentence) {
      const std::size_t end = std::min(start + kLongestSentence, tokens->size());
      haystack.sentences_.emplace_back(tokens->begin() + static_cast<std::ptrdiff_t>(start),
                                       tokens->begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  if (haystack.sentences_.empty()) return error("the text has no sentences to hide anything among");
  return haystack;
}

std::vector<Tokens> Haystack::take(std::size_t first, int n_tokens) const {
  std::vector<Tokens> taken;
  for (std::size_t i = first;; ++i) {
    const Tokens& next = sentences_[i % sentences_.size()];
    n_tokens -= static_cast<int>(next.size());
    if (n_tokens < 0) return taken;
    taken.push_back(next);
  }
}

}  // namespace kvant
