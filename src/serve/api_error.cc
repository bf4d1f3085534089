#include "serve/api_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace kvant {
namespace {

struct Kind {
  const char* type;
  const char* code;
};

// The types and codes are the OpenAI API's.
Kind kind_of(const ApiError& error) {
  constexpr const char* kInvalidRequest = "invalid_request_error";
  switch (error.status) {
    case 401:
      return {kInvalidRequest, "invalid_api_key"};
    case 403:
      return {kInvalidRequest, "forbidden"};
    case 404:
      return {kInvalidRequest, "not_found"};
    case 405:
    case 501:
      return {kInvalidRequest, "method_not_allowed"};
    case 409:
      return {kInvalidRequest, "conflict"};
    case 413:
    case 414:
    case 431:
      return {kInvalidRequest, "request_too_large"};
    case 415:
      return {kInvalidRequest, "unsupported_media_type"};
    case 505:
      return {kInvalidRequest, "http_version_not_supported"};
    case 429:
      return {"requests", "rate_limit_exceeded"};
    case 503:
      return {"server_error", "server_overloaded"};
    default:
      if (error.status >= 500) return {"server_error", "server_error"};
      return {kInvalidRequest, error.parameter.empty() ? "invalid_request" : kInvalidValue};
  }
}

}  // namespace

std::string ApiError::body() const {
  using Json = nlohmann::ordered_json;
  const Kind kind = kind_of(*this);
  const Json error = {{"message", message},
                      {"type", kind.type},
                      {"param", parameter.empty() ? Json(nullptr) : Json(parameter)},
                      {"code", code.empty() ? kind.code : code.c_str()}};
  return Json{{"type", "error"}, {"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError unknown_model(const std::string& name, std::span<const ServerInfo> served) {
  std::string message = fmt::format("the model '{}' is not served here: ", name);
  std::vector<std::string> names;
  for (const ServerInfo& info : served) std::ranges::copy(names_of(info), std::back_inserter(names));
  for (const std::string& known : names)
    message += fmt::format("{}'{}'", &known == names.data() ? "" : " and ", known);
  return {.status = 404,
          .message = message + (names.size() > 1 ? " are" : " is"),
          .parameter = "model",
          .code = kModelNotFound};
}

ApiError context_overflow(const ContextOverflow& overflow) {
  return {.message =
              fmt::format("this model's maximum context length is {} tokens, and the prompt has {} tokens: "
                          "please reduce the length of the {}, or start the server with a larger -c",
                          overflow.context, overflow.prompt, overflow.parameter),
          .parameter = overflow.parameter,
          .code = kContextLengthExceeded,
          .overflow = overflow};
}

}  // namespace kvant
