#include "model/grammar.h"

#include <llama.h>

#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "model/grammar_bounds.h"
#include "model/grammar_rules.h"
#include "model/grammar_trigger.h"
#include "model/grammar_vocabulary.h"

namespace kvant {
namespace {

constexpr std::size_t kMaxGrammarBytes = 256 << 10;

// Returns the number of a token that rules name by number or text. Returns nothing if the vocabulary has no
// such token.
std::optional<std::int32_t> token_of(const std::string& text, const llama_vocab* vocabulary) {
  if (text.starts_with('[')) {
    std::int64_t number = 0;
    const std::string_view digits = std::string_view(text).substr(1, text.size() - 2);
    if (!text.ends_with(']') || digits.empty() || digits.size() > 9) return std::nullopt;
    for (const char c : digits) {
      if (c < '0' || c > '9') return std::nullopt;
      number = 10 * number + (c - '0');
    }
    return static_cast<std::int32_t>(number);
  }
  const std::string whole = "<" + text + ">";
  std::array<llama_token, 2> tokens{};
  const int n =
      llama_tokenize(vocabulary, whole.data(), static_cast<int>(whole.size()), tokens.data(),
                     static_cast<int>(tokens.size()), /*add_special=*/false, /*parse_special=*/true);
  return n == 1 ? std::optional(tokens[0]) : std::nullopt;
}

}  // namespace

struct Grammar::State {
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  GrammarTrigger trigger;
  mutable GrammarMatcher matcher;  // mutable, because testing a token does not move the position
  GrammarPosition at;

  // Returns the position after `token`, whose text is `text`. Returns nothing if the token cannot come next.
  std::optional<GrammarPosition> after(std::int32_t token, std::string_view text) const {
    auto next = follow_text(matcher, at, text);
    if (!next) next.emplace();
    if (matcher.wants_tokens(at.states))
      next->states = matcher.either(next->states, matcher.after_token(at.states, token));
    if (next->states == kNoStates || matcher.is_exhausted()) return std::nullopt;
    return next;
  }
};

Grammar::Grammar(std::unique_ptr<State> state) : state_(std::move(state)) {}
Grammar::~Grammar() = default;

Result<std::unique_ptr<Grammar>> Grammar::make(const GrammarRules& rules, const Tokenizer& tokenizer) {
  if (tokenizer.library_model() == nullptr) return error("the model's vocabulary does not support grammars");
  if (rules.gbnf.size() > kMaxGrammarBytes) {
    return error("a grammar of {} bytes is larger than the limit of {}", rules.gbnf.size(), kMaxGrammarBytes);
  }
  auto table = read_grammar(rules.gbnf);
  if (!table.ok()) return table.error();
  KVANT_RETURN_IF_ERROR(check_bounds(*table));
  const llama_vocab* words = llama_model_get_vocab(tokenizer.library_model());
  for (GrammarTerminal& terminal : table->terminals) {
    if (terminal.token_text.empty()) continue;
    const auto token = token_of(terminal.token_text, words);
    if (!token)
      return error("the grammar has a token that the model doesn't have: <{}>", terminal.token_text);
    terminal.token = *token;
  }
  auto trigger = GrammarTrigger::make(rules.trigger);
  if (!trigger.ok()) return trigger.error();
  GrammarMatcher matcher(std::make_shared<const GrammarPlaces>(std::move(*table)));
  if (matcher.is_exhausted()) return error("the grammar can begin in too many ways");
  GrammarPosition start{.states = matcher.start()};
  return std::unique_ptr<Grammar>(new Grammar(
      std::make_unique<State>(State{vocabulary(tokenizer), std::move(*trigger), std::move(matcher), start})));
}

std::shared_ptr<const GrammarVocabulary> Grammar::vocabulary(const Tokenizer& tokenizer) {
  if (tokenizer.library_model() == nullptr) return nullptr;
  return GrammarVocabulary::of(llama_model_get_vocab(tokenizer.library_model()));
}

std::unique_ptr<Grammar> Grammar::clone() const {
  return std::unique_ptr<Grammar>(new Grammar(std::make_unique<State>(*state_)));
}

bool Grammar::is_exhausted() const {
  return state_->matcher.is_exhausted();
}

bool Grammar::allows(std::int32_t token) const {
  if (state_->trigger.is_awaited()) return true;
  if (state_->vocabulary->ends(token)) return state_->matcher.may_end(state_->at.states);
  const std::string& text = state_->vocabulary->text(token);
  return !text.empty() && state_->after(token, text).has_value();
}

void Grammar::mask(llama_token_data_array& candidates) const {
  if (state_->trigger.is_awaited()) return;
  std::vector<bool> allowed(state_->vocabulary->size());
  state_->vocabulary->allow(state_->matcher, state_->at, allowed);
  for (std::size_t i = 0; i < candidates.size; ++i) {
    llama_token_data& token = candidates.data[i];
    if (!allowed[token.id] || is_exhausted()) token.logit = -INFINITY;
  }
}

Status Grammar::accept(std::int32_t token) {
  State& state = *state_;
  const std::string& text = state.vocabulary->text(token);
  if (state.trigger.is_awaited()) {
    for (const auto& [waiting, part] : state.trigger.add(token, text)) {
      auto next = state.after(waiting, part);
      if (!next) return error("the answer has left its grammar");
      state.at = *next;
    }
  } else if (state.vocabulary->ends(token)) {
    if (!state.matcher.may_end(state.at.states)) return error("the answer has left its grammar");
  } else {
    auto next = text.empty() ? std::nullopt : state.after(token, text);
    if (!next) return error("the answer has left its grammar");
    state.at = *next;
  }
  state.matcher.begin_token(state.at.states);
  return {};
}

}  // namespace kvant
