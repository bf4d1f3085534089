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

ApiError unknown_model(const std::string& name, const std::string& served) {
  return {.status = 404, .message = fmt::format("the model '{}' is not served here: '{}' is", name, served)};
}

}  // namespace kvant
