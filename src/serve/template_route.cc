#include "serve/template_route.h"

#include <httplib.h>

#include "base/json_reader.h"
#include "serve/chat_messages.h"
#include "serve/http_reply.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

Result<std::string> prompt_of(const std::string& body, const Tokenizer& tokenizer) {
  const auto json = parse_json(body);
  if (!json.ok()) return json.error();
  JsonFields fields(*json);
  const std::vector<ChatMessage> messages = read_messages(fields);
  fields.refuse_others();
  if (fields.error()) return Error{fields.error()->message};
  return tokenizer.chat_prompt(messages);
}

}  // namespace

void add_template_route(httplib::Server& server, const Tokenizer& tokenizer) {
  server.Post("/apply-template", [&tokenizer](const Request& request, Response& response) {
    const auto prompt = prompt_of(request.body, tokenizer);
    if (!prompt.ok()) return send(response, ApiError{.message = prompt.error().message});
    send(response, {{"prompt", *prompt}});
  });
}

}  // namespace kvant
