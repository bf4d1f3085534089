// Exchange: the answers to one request of the API, which may have several prompts.
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

// How often a waiting thread looks whether its client is still there.
inline constexpr std::chrono::milliseconds kPatience{50};

// Sets whose the prompts are, which of the recipes that are served is to answer them, and the model's name as
// the answers have it. Returns which recipe, or an error: none can.
std::variant<int, ApiError> address(ApiRequest& request, std::span<const ServerInfo> served,
                                    const std::string& client);

class Exchange {
 public:
  Exchange(int n_answers, std::string model) : n_answers_(n_answers), model_(std::move(model)) {}
  ~Exchange();  // cancels what has not ended
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Submits all prompts, or none: an error is the answer to the client then.
  static std::variant<std::shared_ptr<Exchange>, ApiError> start(ServeLoop& loop, ApiRequest request);

  // Waits for a part of any answer, about that long. part: `choice` is its number among all answers.
  AnswerStream::Next read(std::chrono::milliseconds patience, int& choice, AnswerPart& part);

  const std::string& model() const { return model_; }  // that answers

  // After `closed`.
  std::optional<ApiError> failure() const;
  TokenUsage usage() const;  // so far; of prompts from when they begin to be read
  bool has_begun() const;    // whether all prompts have

 private:
  int n_answers_;  // to each prompt
  std::string model_;
  std::vector<std::shared_ptr<AnswerStream>> streams_;  // by prompt
  std::size_t next_ = 0;                                // the stream to be asked first
};

}  // namespace kvant
