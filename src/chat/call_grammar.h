// The grammar of a completion that must call a tool.
#pragma once

#include <string>

struct common_chat_params;

namespace kvant {

struct CallGrammar {
  std::string gbnf;
  std::string start;  // of the prompt's end, what the grammar begins with
};

// The library lets text of any length go before a call that is required. In this grammar a completion begins
// with the call, or with a thought and then the call, where the template has thoughts. required: with a call
// that is required. optional: the same without that. splits_thoughts: else thoughts are text.
CallGrammar required_call_grammar(const common_chat_params& required, const common_chat_params& optional,
                                  bool splits_thoughts);

// Whether the prompt ends within a thought.
bool ends_in_thought(const common_chat_params& params);

}  // namespace kvant
