// A chat of any API, from what its request has said to what the scheduler gets.
#pragma once

#include "chat/chat_history.h"
#include "chat/chat_tools.h"
#include "model/tokenizer.h"
#include "serve/answer_format.h"
#include "serve/api_request.h"
#include "serve/json_fields.h"

namespace kvant {

struct Chat {
  ChatHistory conversation;
  ChatTools tools;
  AnswerFormat format;
  GenerationRequest options;
};

// Adds the chat to `request`, as its prompt. The parameters that were not read follow the rule
// (parameter_rule.h). The error is that of `fields`, or says why the chat has no prompt.
ParsedRequest chat_request(JsonFields& fields, Chat chat, ApiRequest request, const Tokenizer& tokenizer,
                           const ApiLimits& limits);

}  // namespace kvant
