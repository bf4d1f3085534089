// Turns a parsed chat of any API into a request for the scheduler. Every API first fills in a Chat.
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

// Makes the chat the prompt of `request`. Unread parameters follow the rule in parameter_rule.h. Returns the
// error of `fields`, or an error if the chat has no prompt.
ParsedRequest chat_request(JsonFields& fields, Chat chat, ApiRequest request, const Tokenizer& tokenizer,
                           const ApiLimits& limits);

}  // namespace kvant
