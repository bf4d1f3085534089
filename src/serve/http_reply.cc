#include "serve/http_reply.h"

#include <fmt/format.h>

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
  if (!is_messages_path(request.path)) return;
  response.status = messages_status(error);
  response.set_content(messages_error(error, request_id(response)), kJsonType);
}

bool is_messages_path(const std::string& path) {
  return path.starts_with("/v1/messages");
}

std::string request_id(const httplib::Response& response) {
  return response.get_header_value("x-request-id");
}

void refuse_other_methods(httplib::Server& server, const std::string& path, const std::string& allowed) {
  const auto refuse = [allowed](const httplib::Request& request, httplib::Response& response) {
    response.set_header("Allow", allowed);
    send(request, response,
         ApiError{.status = 405,
                  .message =
                      fmt::format("{} does not support {}: use {}", request.path, request.method, allowed)});
  };
  if (allowed.find("GET") == std::string::npos) server.Get(path, refuse);
  if (allowed.find("POST") == std::string::npos) server.Post(path, refuse);
  if (allowed.find("DELETE") == std::string::npos) server.Delete(path, refuse);
  server.Put(path, refuse);
  server.Patch(path, refuse);
}

void add_post_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler) {
  server.Post(path, std::move(handler));
  refuse_other_methods(server, path, "POST");
}

void add_get_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler) {
  server.Get(path, std::move(handler));
  refuse_other_methods(server, path, "GET, HEAD");
}

}  // namespace kvant
