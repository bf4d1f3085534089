// Exchange holds the completions of one API request, which may have several prompts. The destructor cancels
// completions that still run.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "serve/api_error.h"
#include "serve/api_request.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace kvant {

// A waiting thread checks at this interval whether its client is still connected.
inline constexpr std::chrono::milliseconds kPatience{50};

// Finds the recipe that serves the request. Sets the client and recipe of all prompts and the model's name in
// the response. Returns the recipe's number, or an error if no served model matches.
std::variant<int, ApiError> address(ApiRequest& request, std::span<const ServerInfo> served,
                                    const std::string& client);

class Exchange {
 public:
  Exchange(int n_answers, std::string model) : n_answers_(n_answers), model_(std::move(model)) {}
  ~Exchange();  // cancels the completions that still run
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Submits all prompts, or none if the scheduler refuses one. The error is the response to the client.
  static std::variant<std::shared_ptr<Exchange>, ApiError> start(ServeLoop& loop, ApiRequest request);

  // Waits for a part of any completion, for about the time `patience`. If the result is `part`, `choice` is
  // the completion's number among all completions of the request.
  AnswerStream::Next read(std::chrono::milliseconds patience, int& choice, AnswerPart& part);

  const std::string& model() const { return model_; }  // the name of the model that generates the completions

  // The failure is final once read() has returned `closed`.
  std::optional<ApiError> failure() const;
  TokenUsage usage() const;  // the usage so far; a prompt counts once its prefill has begun
  bool has_begun() const;    // true once prefill has begun for all prompts

 private:
  int n_answers_;  // per prompt
  std::string model_;
  std::vector<std::shared_ptr<AnswerStream>> streams_;  // each prompt has a stream
  std::size_t next_ = 0;                                // the next read() starts with this stream
};

}  // namespace kvant
