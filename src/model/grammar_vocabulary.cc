#include "model/grammar_vocabulary.h"

#include <llama.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace kvant {
namespace {

std::string text_of(const llama_vocab* vocabulary, std::int32_t token) {
  std::string text(32, '\0');
  int n = llama_token_to_piece(vocabulary, token, text.data(), static_cast<int>(text.size()), /*lstrip=*/0,
                               /*special=*/true);
  if (n < 0) {
    text.resize(-n);
    n = llama_token_to_piece(vocabulary, token, text.data(), static_cast<int>(text.size()), 0, true);
  }
  text.resize(std::max(n, 0));
  return text;
}

constexpr std::uint32_t kMostCharacter = 0x10FFFF;
constexpr std::uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

}  // namespace

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::of(const llama_vocab* vocabulary) {
  static std::mutex mutex;
  static std::map<const llama_vocab*, std::weak_ptr<const GrammarVocabulary>> known;
  const std::lock_guard lock(mutex);
  auto found = known[vocabulary].lock();
  if (found == nullptr) known[vocabulary] = found = std::make_shared<GrammarVocabulary>(vocabulary);
  return found;
}

GrammarVocabulary::GrammarVocabulary(const llama_vocab* vocabulary) : tree_(1) {
  const int n = llama_vocab_n_tokens(vocabulary);
  for (std::int32_t token = 0; token < n; ++token) {
    ends_.push_back(llama_vocab_is_eog(vocabulary, token));
    const std::string& text = texts_.emplace_back(text_of(vocabulary, token));
    if (ends_.back() || text.empty() || text.find('\0') != std::string::npos) {
      texts_.back().clear();
      continue;
    }
    int node = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      const auto child = std::ranges::find(tree_[node].children, byte, &std::pair<unsigned char, int>::first);
      if (child != tree_[node].children.end()) {
        node = child->second;
      } else {
        const int added = static_cast<int>(tree_.size());
        tree_[node].children.emplace_back(byte, added);
        tree_.emplace_back();
        node = added;
      }
    }
    tree_[node].tokens.push_back(token);
  }
}

std::optional<GrammarPosition> follow_byte(GrammarMatcher& matcher, const GrammarPosition& at,
                                           unsigned char byte) {
  GrammarPosition next;
  if (at.bytes_left > 0) {
    if ((byte & 0xC0) != 0x80) return std::nullopt;
    next.character = at.character << 6 | (byte & 0x3FU);
    next.bytes_left = at.bytes_left - 1;
    next.least = at.least;
  } else if (byte < 0x80) {
    next.character = byte;
  } else if (byte >= 0xC2 && byte < 0xF5) {
    next.bytes_left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    next.character = byte & ((0x40U >> next.bytes_left) - 1);
    next.least = next.bytes_left == 1 ? 0x80 : next.bytes_left == 2 ? 0x800 : 0x10000;
  } else {
    return std::nullopt;
  }
  if (next.bytes_left == 0) {
    next.states = matcher.after(at.states, next.character);
    next.character = 0;
  } else {
    // The bytes so far can still become a character in [low, high]. The range excludes overlong forms and
    // surrogates (RFC 3629).
    const int shift = 6 * next.bytes_left;
    const std::uint32_t low = std::max(next.least, next.character << shift);
    const std::uint32_t high = std::min(kMostCharacter, ((next.character + 1) << shift) - 1);
    if (low > high || (low >= kFirstSurrogate && high <= kLastSurrogate)) return std::nullopt;
    next.states = matcher.possible(at.states, low, high);
  }
  if (next.states == kNoStates) return std::nullopt;
  return next;
}

std::optional<GrammarPosition> follow_text(GrammarMatcher& matcher, GrammarPosition at,
                                           std::string_view text) {
  for (const char c : text) {
    auto next = follow_byte(matcher, at, static_cast<unsigned char>(c));
    if (!next) return std::nullopt;
    at = *next;
  }
  return at;
}

void GrammarVocabulary::walk(GrammarMatcher& matcher, const GrammarPosition& at, int node,
                             std::vector<bool>& allowed) const {
  for (const std::int32_t token : tree_[node].tokens) allowed[token] = true;
  for (const auto& [byte, child] : tree_[node].children) {
    if (matcher.is_exhausted()) return;
    if (const auto next = follow_byte(matcher, at, byte)) walk(matcher, *next, child, allowed);
  }
}

void GrammarVocabulary::allow(GrammarMatcher& matcher, const GrammarPosition& at,
                              std::vector<bool>& allowed) const {
  walk(matcher, at, 0, allowed);
  const bool may_end = matcher.may_end(at.states), wants_tokens = matcher.wants_tokens(at.states);
  for (std::size_t token = 0; token < allowed.size(); ++token) {
    if (ends_[token]) {
      allowed[token] = may_end;
    } else if (wants_tokens && !allowed[token] && !texts_[token].empty()) {
      allowed[token] = matcher.after_token(at.states, static_cast<std::int32_t>(token)) != kNoStates;
    }
  }
}

}  // namespace kvant
