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

// What is asked by POST. Who asks by GET, as a browser does, is told so.
void add_post_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);

}  // namespace kvant
