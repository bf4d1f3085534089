#include "serve/template_route.h"

#include <httplib.h>

#include <variant>

#include "base/json_reader.h"
#include "serve/chat_messages.h"
#include "serve/chat_tools.h"
#include "serve/http_reply.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;

std::variant<std::string, ApiError> prompt_of(const std::string& body, const ChatTemplate* chat_template) {
  const auto json = parse_json(body);
  if (!json.ok()) return ApiError{.message = json.error().message};
  JsonFields fields(*json);
  const ChatHistory conversation = read_messages(fields);
  const ChatTools tools = read_tools(fields);
  fields.leave_others();
  if (fields.error()) return *fields.error();
  auto text = chat_text(conversation, tools, chat_template);
  if (!text.ok()) return ApiError{.message = text.error().message, .parameter = "messages"};
  return std::move(text).value();
}

}  // namespace

void add_template_route(httplib::Server& server, const ChatTemplate* chat_template) {
  add_post_route(server, "/apply-template", [chat_template](const Request& request, Response& response) {
    const auto prompt = prompt_of(request.body, chat_template);
    if (const auto* wrong = std::get_if<ApiError>(&prompt)) return send(response, *wrong);
    send(response, {{"prompt", std::get<std::string>(prompt)}});
  });
}

}  // namespace kvant
