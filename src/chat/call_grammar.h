// Makes the grammar of a completion that must call a tool. llama.cpp's own grammar also allows any text
// before the call, which could go on forever.
#pragma once

#include <string>

struct common_chat_params;

namespace kvant {

struct CallGrammar {
  std::string gbnf;
  std::string start;  // the end of the prompt, with which the grammar begins
};

// Returns a grammar for a completion that begins with a tool call, or with a thought before the call if the
// template has thoughts. `required` are the library's parameters for a required call, and `optional` are its
// parameters for an optional call. If splits_thoughts is false, thoughts are part of the completion's text.
CallGrammar required_call_grammar(const common_chat_params& required, const common_chat_params& optional,
                                  bool splits_thoughts);

// Returns whether the prompt ends within a thought.
bool ends_in_thought(const common_chat_params& params);

}  // namespace kvant
