// Sends HTTP responses.
#pragma once

#include <httplib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "serve/api_error.h"

namespace kvant {

inline constexpr const char* kJsonType = "application/json";

void send(httplib::Response& response, const nlohmann::ordered_json& json);
// Sends an error with its status and the time after which to retry.
void send(httplib::Response& response, const ApiError& error);
// Sends an error in the format of the API (OpenAI's or Anthropic's) to which the path belongs.
void send(const httplib::Request& request, httplib::Response& response, const ApiError& error);
bool is_messages_path(const std::string& path);  // a path of Anthropic's API
std::string request_id(const httplib::Response& response);

// Adds a route for POST, or for GET and HEAD. Other methods get status 405 and a sentence.
void add_post_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);
void add_get_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);
// Adds only the refusals. Call it after the handlers of a path. allowed: "GET, HEAD, DELETE".
void refuse_other_methods(httplib::Server& server, const std::string& path, const std::string& allowed);

}  // namespace kvant
