// What is sent back over HTTP.
#pragma once

#include <httplib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "serve/api_error.h"

namespace kvant {

inline constexpr const char* kJsonType = "application/json";

void send(httplib::Response& response, const nlohmann::ordered_json& json);
// With the error's status, and when to ask again.
void send(httplib::Response& response, const ApiError& error);
// The same in the format of the API whose path was asked for: OpenAI's or Anthropic's.
void send(const httplib::Request& request, httplib::Response& response, const ApiError& error);
bool is_messages_path(const std::string& path);  // Anthropic's
std::string request_id(const httplib::Response& response);

// These routes take POST, or GET and HEAD. Another method gets status 405 and a sentence.
void add_post_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);
void add_get_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);
// The refusals alone, after the handlers of a path. allowed: "GET, HEAD, DELETE".
void refuse_other_methods(httplib::Server& server, const std::string& path, const std::string& allowed);

}  // namespace kvant
