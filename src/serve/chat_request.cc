#include "serve/chat_request.h"

#include <fmt/format.h>

#include <string_view>

#include "serve/chat_messages.h"
#include "serve/chat_tools.h"
#include "serve/parameter_rule.h"

namespace kvant {

ParsedRequest chat_request(JsonFields& fields, Chat chat, ApiRequest request, const Tokenizer& tokenizer,
                           const ApiLimits& limits) {
  const AnswerFormat& format = chat.format;
  // A grammar that the client wrote may describe thoughts. The grammar of a JSON schema never does, so the
  // model must not think.
  chat.conversation.thinking.may_think =
      format.gbnf.empty() || std::string_view(format.parameter) == "grammar";
  if (!format.gbnf.empty() && chat.tools.may_be_called())
    fields.fail(format.parameter, fmt::format("'{}' and 'tools' both set the format of the completion: leave "
                                              "out 'tools', or set 'tool_choice' to \"none\"",
                                              format.parameter));
  apply_parameter_rule(fields, limits.log);
  log_loosened(chat.tools, limits.log);
  if (fields.error()) return *fields.error();
  if (auto failure = set_grammar(format, tokenizer, chat.options)) return *std::move(failure);
  if (auto failure = set_chat_prompt(chat.conversation, chat.tools, tokenizer, limits.chat_template, request,
                                     chat.options))
    return *std::move(failure);
  request.prompts.push_back(std::move(chat.options));
  return request;
}

}  // namespace kvant
