#include "model/grammar.h"

#include <llama.h>

#include <cmath>
#include <exception>

#include "model/grammar_bounds.h"
#include "model/grammar_rules.h"

namespace kvant {
namespace {

constexpr std::size_t kMaxGrammarBytes = 256 << 10;

}  // namespace

Result<std::unique_ptr<Grammar>> Grammar::make(const GrammarRules& rules, const Tokenizer& tokenizer) {
  if (tokenizer.library_model() == nullptr) return error("the model has no vocabulary to write by a grammar");
  if (rules.gbnf.size() > kMaxGrammarBytes) {
    return error("a grammar of {} bytes is larger than the {} that are read", rules.gbnf.size(),
                 kMaxGrammarBytes);
  }
  // llama.cpp's reader trusts what it reads: with rules that are not bounded it takes all memory, or all
  // time.
  const auto table = read_grammar(rules.gbnf);
  if (!table.ok()) return table.error();
  KVANT_RETURN_IF_ERROR(check_bounds(*table));
  std::vector<const char*> patterns;
  for (const std::string& pattern : rules.trigger_patterns) patterns.push_back(pattern.c_str());
  const llama_vocab* vocabulary = llama_model_get_vocab(tokenizer.library_model());
  llama_sampler* made = nullptr;
  try {
    made = rules.is_lazy() ? llama_sampler_init_grammar_lazy_patterns(
                                 vocabulary, rules.gbnf.c_str(), "root", patterns.data(), patterns.size(),
                                 rules.trigger_tokens.data(), rules.trigger_tokens.size())
                           : llama_sampler_init_grammar(vocabulary, rules.gbnf.c_str(), "root");
  } catch (const std::exception& e) {
    return error("the grammar can't be used: {}", e.what());
  }
  if (made == nullptr)
    return error(
        "the grammar can't be used: it repeats something with repetitions in it too often, or has a token "
        "that the model doesn't have");
  return std::unique_ptr<Grammar>(new Grammar(made));
}

Grammar::~Grammar() {
  llama_sampler_free(rules_);
}

std::unique_ptr<Grammar> Grammar::clone() const {
  return std::unique_ptr<Grammar>(new Grammar(llama_sampler_clone(rules_)));
}

bool Grammar::allows(std::int32_t token) const {
  llama_token_data one{token, 0.0F, 0.0F};
  llama_token_data_array candidates{&one, 1, /*selected=*/-1, /*sorted=*/false};
  mask(candidates);
  return !std::isinf(one.logit);
}

void Grammar::mask(llama_token_data_array& candidates) const {
  llama_sampler_apply(rules_, &candidates);
}

Status Grammar::accept(std::int32_t token) {
  if (!allows(token)) return error("the answer has left its grammar");
  try {
    llama_sampler_accept(rules_, token);
  } catch (const std::exception&) {
    return error("the answer has left its grammar");
  }
  return {};
}

}  // namespace kvant
