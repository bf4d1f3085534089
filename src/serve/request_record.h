// RequestRecord is the log's entry for one HTTP request. For privacy, the log holds no prompt, no completion
// and no key.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace kvant {

struct RequestRecord {
  using Clock = std::chrono::steady_clock;

  std::string id = {};  // the response has this x-request-id
  std::string client = {};
  std::string method = {};
  std::string path = {};  // the path has no query
  int status = 0;         // the HTTP status; 0 if nothing was sent
  Clock::time_point start = Clock::now();
  double seconds = 0;  // the time from the request's arrival to the response's last byte

  // The members from `model` to `end` describe a completion.
  std::string model = {};  // empty if the request has no completion
  int prompt_tokens = 0;
  int cached_tokens = 0;                     // prompt tokens from the prefix cache
  std::optional<int> generated_tokens = {};  // empty if the client left before the tokens were counted
  std::optional<double> first_token_seconds = {};
  std::string end = {};  // the reason: "stop", "length", "client left", ...
};

}  // namespace kvant
