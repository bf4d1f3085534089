#include "serve/http_reply.h"

#include "serve/api_response.h"

namespace kvant {

void send(httplib::Response& response, const nlohmann::ordered_json& json) {
  response.set_content(response_text(json), kJsonType);
}

void send(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_seconds > 0) response.set_header("Retry-After", std::to_string(error.retry_seconds));
  response.set_content(error.body(), kJsonType);
}

}  // namespace kvant
