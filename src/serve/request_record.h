// RequestRecord is what the log says of one HTTP request. It holds no prompt, no completion and no key.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace kvant {

struct RequestRecord {
  using Clock = std::chrono::steady_clock;

  std::string id = {};      // the response's x-request-id
  std::string client = {};  // IP address
  std::string method = {};
  std::string path = {};  // without the query
  int status = 0;         // HTTP status; 0: nothing was sent
  Clock::time_point start = Clock::now();
  double seconds = 0;  // from the request's arrival to the response's last byte

  // These members describe a completion.
  std::string model = {};  // empty: the request is no completion
  int prompt_tokens = 0;
  int cached_tokens = 0;                     // prompt tokens that were not read again
  std::optional<int> generated_tokens = {};  // none: the client left before they were counted
  std::optional<double> first_token_seconds = {};
  std::string end = {};  // the reason: "stop", "length", "client left", ...
};

}  // namespace kvant
