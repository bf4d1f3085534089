#include "serve/template_route.h"

#include <httplib.h>

#include "base/json_reader.h"
#include "serve/chat_messages.h"
#include "serve/chat_tools.h"
#include "serve/http_reply.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

Result<std::string> prompt_of(const std::string& body, const ChatTemplate* chat_template) {
  const auto json = parse_json(body);
  if (!json.ok()) return json.error();
  JsonFields fields(*json);
  const ChatHistory conversation = read_messages(fields);
  const ChatTools tools = read_tools(fields);
  fields.leave_others();
  if (fields.error()) return Error{fields.error()->message};
  return chat_text(conversation, tools, chat_template);
}

}  // namespace

void add_template_route(httplib::Server& server, const ChatTemplate* chat_template) {
  add_post_route(server, "/apply-template", [chat_template](const Request& request, Response& response) {
    const auto prompt = prompt_of(request.body, chat_template);
    if (!prompt.ok()) return send(response, ApiError{.message = prompt.error().message});
    send(response, {{"prompt", *prompt}});
  });
}

}  // namespace kvant
