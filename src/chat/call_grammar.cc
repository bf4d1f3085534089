#include "chat/call_grammar.h"

#include <chat.h>

#include <algorithm>
#include <regex>

namespace kvant {
namespace {

// Returns the line of a grammar that defines its root rule.
std::string root_of(const std::string& gbnf) {
  const std::size_t at = gbnf.starts_with("root ::=") ? 0 : gbnf.find("\nroot ::=") + 1;
  return gbnf.substr(at, gbnf.find('\n', at) - at);
}

void replace_root(std::string& gbnf, const std::string& root) {
  const std::string old = root_of(gbnf);
  gbnf.replace(gbnf.find(old), old.size(), root);
}

// Returns the root rule without the free text that may precede a call.
std::string without_free_text(const std::string& root) {
  static const std::regex kFreeText(R"(until-\d+\?? (?=(space )?\S*tool))");
  return std::regex_replace(root, kFreeText, "");
}

bool has_end(const common_chat_params& params, std::size_t from) {
  return std::ranges::any_of(params.thinking_end_tags, [&](const std::string& end) {
    return params.generation_prompt.find(end, from) != std::string::npos;
  });
}

}  // namespace

bool ends_in_thought(const common_chat_params& params) {
  if (params.thinking_start_tag.empty()) return false;
  const std::size_t start = params.generation_prompt.rfind(params.thinking_start_tag);
  return start != std::string::npos && !has_end(params, start);
}

CallGrammar required_call_grammar(const common_chat_params& required, const common_chat_params& optional,
                                  bool splits_thoughts) {
  CallGrammar grammar{.gbnf = required.grammar, .start = {}};
  if (!required.supports_thinking && optional.grammar_lazy) {
    replace_root(grammar.gbnf, root_of(optional.grammar));
    return grammar;
  }
  grammar.start = required.generation_prompt;
  // Some prompts turn thoughts off by writing only a thought's end tag. The grammar treats this tag as text,
  // so text must stay allowed.
  const bool has_end_alone =
      required.generation_prompt.find(required.thinking_start_tag) == std::string::npos &&
      has_end(required, 0);
  const bool has_thoughts_in_text = required.supports_thinking && (!splits_thoughts || has_end_alone);
  if (!has_thoughts_in_text) replace_root(grammar.gbnf, without_free_text(root_of(grammar.gbnf)));
  return grammar;
}

}  // namespace kvant
