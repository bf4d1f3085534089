// Exchange holds the completions of one API request, which may have several prompts.
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

// How often a waiting thread checks that its client is still there.
inline constexpr std::chrono::milliseconds kPatience{50};

// Sets the client of the prompts, the recipe that serves them, and the model's name in the response. Returns
// the recipe's number, or an error if no served model matches.
std::variant<int, ApiError> address(ApiRequest& request, std::span<const ServerInfo> served,
                                    const std::string& client);

class Exchange {
 public:
  Exchange(int n_answers, std::string model) : n_answers_(n_answers), model_(std::move(model)) {}
  ~Exchange();  // cancels what has not ended
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Submits all prompts or none. An error is the client's answer.
  static std::variant<std::shared_ptr<Exchange>, ApiError> start(ServeLoop& loop, ApiRequest request);

  // Waits for a part of any completion, about `patience`. With `part`, `choice` is its number among all
  // completions.
  AnswerStream::Next read(std::chrono::milliseconds patience, int& choice, AnswerPart& part);

  const std::string& model() const { return model_; }  // name of the model that answers

  // The result is valid after `closed`.
  std::optional<ApiError> failure() const;
  TokenUsage usage() const;  // usage so far; prompts count from when prefill begins
  bool has_begun() const;    // whether prefill has begun for all prompts

 private:
  int n_answers_;  // per prompt
  std::string model_;
  std::vector<std::shared_ptr<AnswerStream>> streams_;  // by prompt
  std::size_t next_ = 0;                                // the stream to look at first
};

}  // namespace kvant
