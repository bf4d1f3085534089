#include "serve/api_error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvant {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429 || status == 503) return "overloaded_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string ApiError::body() const {
  using Json = nlohmann::ordered_json;
  const Json error = {{"message", message},
                      {"type", type_of(status)},
                      {"param", parameter.empty() ? Json(nullptr) : Json(parameter)},
                      {"code", status}};
  return Json{{"type", "error"}, {"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError unknown_model(const std::string& name, std::span<const ServerInfo> served) {
  std::string message = fmt::format("the model '{}' is not served here: ", name);
  for (const ServerInfo& info : served)
    message += fmt::format("{}'{}'", &info == served.data() ? "" : " and ", info.model);
  return {.status = 404, .message = message + (served.size() > 1 ? " are" : " is")};
}

}  // namespace kvant
