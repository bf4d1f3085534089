// Handles requests that generate, in the same way for all APIs: parses a request, finds the recipe that its
// model name stands for, starts it, and sends its completions whole or as events.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "serve/answer_delivery.h"
#include "serve/api_request.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace kvant {

// Writes the completions of one request in the format of an API. They are sent whole, or as the events that
// the other functions return, with separators.
class ApiAnswers {
 public:
  using Json = nlohmann::ordered_json;

  virtual ~ApiAnswers() = default;

  virtual void add(int choice, const AnswerPart& part) = 0;
  virtual Json whole(const TokenUsage& usage) = 0;  // called after the last part

  virtual std::string start_events(const TokenUsage& /*usage*/) { return ""; }  // `usage` is the prompt's
  virtual std::string part_events(int choice, const AnswerPart& part) = 0;
  virtual std::string end_events(const TokenUsage& usage) = 0;
  virtual std::string failure_events(const ApiError& failure) = 0;
  virtual const char* heartbeat() const { return kSseComment; }
};

struct AnswerRoute {
  std::function<ParsedRequest(const nlohmann::ordered_json& body)> parse;
  // `wanted` is the parsed request with the name of the model that answers, `info` describes that model, and
  // `request_id` is for errors.
  std::function<std::unique_ptr<ApiAnswers>(const nlohmann::ordered_json& body, const ApiRequest& wanted,
                                            const ServerInfo& info, const std::string& request_id)>
      answers;
};

struct AcceptedRequest {
  nlohmann::ordered_json body;
  ApiRequest wanted;
  int recipe = 0;  // number of the recipe that answers
};
// Returns nothing if it refuses the request; the response then says why.
std::optional<AcceptedRequest> accept(const httplib::Request& request, httplib::Response& response,
                                      std::span<const ServerInfo> served,
                                      const decltype(AnswerRoute::parse)& parse);

void add_answer_route(httplib::Server& server, const std::string& path, ServeLoop& loop,
                      std::span<const ServerInfo> served, AnswerRoute route);

}  // namespace kvant
