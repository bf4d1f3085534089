// RequestRecord: what the log says of one HTTP request. It holds no prompt, no completion and no key.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace kvant {

struct RequestRecord {
  using Clock = std::chrono::steady_clock;

  std::string id = {};      // the response has it as x-request-id
  std::string client = {};  // the address
  std::string method = {};
  std::string path = {};  // without the query
  int status = 0;         // of HTTP; 0: nothing was sent
  Clock::time_point start = Clock::now();
  double seconds = 0;  // from the request's arrival to the response's last byte

  // Of a completion.
  std::string model = {};  // empty: the request is none
  int prompt_tokens = 0;
  int cached_tokens = 0;                     // of the prompt: not read anew
  std::optional<int> generated_tokens = {};  // none: the client left before they were counted
  std::optional<double> first_token_seconds = {};
  std::string end = {};  // why it ended: "stop", "length", "client left", ...
};

}  // namespace kvant
