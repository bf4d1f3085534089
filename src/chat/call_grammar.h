// The grammar of a completion that must call a tool.
#pragma once

#include <string>

struct common_chat_params;

namespace kvant {

struct CallGrammar {
  std::string gbnf;
  std::string start;  // the part of the prompt's end that the grammar begins with
};

// The library allows any text before a required call. In this grammar a completion begins with the call or,
// if the template has thoughts, with a thought and then the call. required: parameters with a required call;
// optional: the same with an optional call. splits_thoughts: if false, thoughts are part of the text.
CallGrammar required_call_grammar(const common_chat_params& required, const common_chat_params& optional,
                                  bool splits_thoughts);

// Returns whether the prompt ends within a thought.
bool ends_in_thought(const common_chat_params& params);

}  // namespace kvant
