#include "serve/http_reply.h"

#include "serve/api_response.h"
#include "serve/messages_error.h"

namespace kvant {

void send(httplib::Response& response, const nlohmann::ordered_json& json) {
  response.set_content(response_text(json), kJsonType);
}

void send(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_seconds > 0) response.set_header("Retry-After", std::to_string(error.retry_seconds));
  response.set_content(error.body(), kJsonType);
}

void send(const httplib::Request& request, httplib::Response& response, const ApiError& error) {
  send(response, error);
  if (!request.path.starts_with("/v1/messages")) return;
  response.status = messages_status(error);
  response.set_content(messages_error(error), kJsonType);
}

void add_post_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler) {
  server.Post(path, std::move(handler));
  server.Get(path, [path](const httplib::Request&, httplib::Response& response) {
    response.set_header("Allow", "POST");
    send(response, ApiError{.status = 405, .message = path + " is asked by POST, with a body of JSON"});
  });
}

}  // namespace kvant
