// What is sent back over HTTP.
#pragma once

#include <httplib.h>

#include <nlohmann/json.hpp>

#include "serve/api_error.h"

namespace kvant {

inline constexpr const char* kJsonType = "application/json";

void send(httplib::Response& response, const nlohmann::ordered_json& json);
// With the error's status, and when to ask again.
void send(httplib::Response& response, const ApiError& error);

}  // namespace kvant
