// Reads the messages of a chat in the OpenAI API's format, and makes a prompt of them. The chat template does
// the rendering, and errors of the template become errors of the API.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "chat/chat_history.h"
#include "chat/chat_template.h"
#include "serve/api_request.h"
#include "serve/json_fields.h"

namespace kvant {

// Reads `messages` and `chat_template_kwargs`. Mistakes, and content other than text and tool calls, become
// the error of `fields`.
ChatHistory read_messages(JsonFields& fields);

// Sets the request's prompt, as text and as tokens, from the chat template, the messages and the tools. With
// tools, the function also sets the completion's grammar. Returns an error if the template cannot render the
// chat. A null chat_template means that the model has none.
std::optional<ApiError> set_chat_prompt(const ChatHistory& conversation, const ChatTools& tools,
                                        const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                        ApiRequest& api_request, GenerationRequest& request);

// Returns the text of the prompt that the chat template makes.
Result<std::string> chat_text(const ChatHistory& conversation, const ChatTools& tools,
                              const ChatTemplate* chat_template);

}  // namespace kvant
