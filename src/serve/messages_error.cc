#include "serve/messages_error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "serve/api_response.h"

namespace kvant {
namespace {

constexpr int kOverloaded = 529;

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case kOverloaded:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string message_of(const ApiError& error) {
  if (!error.overflow) return error.message;
  return fmt::format("prompt is too long: {} tokens > {} maximum", error.overflow->prompt,
                     error.overflow->context);
}

}  // namespace

int messages_status(const ApiError& error) {
  return error.status == 503 ? kOverloaded : error.status;
}

std::string messages_error(const ApiError& error, const std::string& request_id) {
  return response_text(
      {{"type", "error"},
       {"error", {{"type", type_of(messages_status(error))}, {"message", message_of(error)}}},
       {"request_id", request_id}});
}

std::string messages_error_event(const ApiError& error, const std::string& request_id) {
  return "event: error\n" + sse_event(messages_error(error, request_id));
}

}  // namespace kvant
