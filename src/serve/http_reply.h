// Sends HTTP responses with JSON and errors, and adds routes that refuse other methods. Errors have the
// format of the API to which the path belongs.
#pragma once

#include <httplib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "serve/api_error.h"

namespace kvant {

inline constexpr const char* kJsonType = "application/json";

void send(httplib::Response& response, const nlohmann::ordered_json& json);
// Sends an error with its HTTP status. If the error says when to retry, the response has that time, too.
void send(httplib::Response& response, const ApiError& error);
// Sends an error in the format of the API to which the request's path belongs, OpenAI's or Anthropic's.
void send(const httplib::Request& request, httplib::Response& response, const ApiError& error);
bool is_messages_path(const std::string& path);  // returns true for paths of Anthropic's API
std::string request_id(const httplib::Response& response);

// add_post_route() adds a route for POST, and add_get_route() adds a route for GET and HEAD. Other methods
// get status 405 and a sentence.
void add_post_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);
void add_get_route(httplib::Server& server, const std::string& path, httplib::Server::Handler handler);
// Adds the refusals of all methods that `allowed` does not list. Call refuse_other_methods() after a path's
// handlers were added. `allowed` is a list such as "GET, HEAD, DELETE".
void refuse_other_methods(httplib::Server& server, const std::string& path, const std::string& allowed);

}  // namespace kvant
