// AnswerStream carries a completion from the scheduler's thread to the thread that waits for the completion.
// The reader can wait with a time limit, and can cancel the completion.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "generate/generation.h"

namespace kvant {

// AnswerPart is the next piece of one completion.
struct AnswerPart {
  int answer = 0;  // the number of the completion within its prompt, from 0
  std::string text = {};
  std::vector<ReportedToken> tokens = {};
  GenerationEnd end = GenerationEnd::none;  // any value but `none` marks the completion's last part
  std::string stop = {};                    // the stop text that ended the completion, or empty
  bool is_prompt = false;                   // the part repeats the prompt at the start of the completion
  std::vector<float> embedding = {};        // [n_embd]; only for requests that want the prompt's embedding
};

// GuardTally sums up what a guard measured in a completion (answer_guard.h).
struct GuardTally {
  std::int64_t tokens = 0;
  std::int64_t differing = 0;  // tokens for which the shadow would have chosen another token
  double kld_sum = 0;          // nats
  double mean_kld() const { return tokens > 0 ? kld_sum / static_cast<double>(tokens) : 0; }
};

struct TokenUsage {
  int prompt = 0;
  int cached = 0;  // prompt tokens that prefill skipped, because the prefix cache held them
  int generated = 0;
  int drafted = 0;                  // draft tokens that were verified
  int accepted = 0;                 // draft tokens that the model confirmed
  std::optional<GuardTally> guard;  // the value is set if the request asked for a guard
};

// AnswerStream is thread-safe for one writing thread (the scheduler's) and one reading thread.
class AnswerStream {
 public:
  // The scheduler's thread calls the functions from begin() to is_cancelled().
  void begin(const TokenUsage& usage);  // `usage` covers the prompt and its cached prefix
  void write(AnswerPart part);
  void close(const TokenUsage& usage);
  // Ends the stream with an error, in place of close(). With is_of_request, the request itself caused the
  // error, and other requests may succeed.
  void fail(Error failure, bool is_of_request = false);
  bool is_cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // The reading thread calls the functions from read() to usage().
  enum class Next { part, closed, nothing_yet };
  // Waits for the next part, at most for the time `patience`. The result is `part` if `into` has received the
  // part, and `closed` if the stream has ended and no part follows.
  Next read(std::chrono::milliseconds patience, AnswerPart& into);
  // Tells the scheduler that nobody waits for the completion any more. The scheduler drops the request before
  // its next step.
  void cancel() { cancelled_.store(true, std::memory_order_release); }

  // The failure is final once read() has returned `closed`.
  const std::optional<Error>& failure() const { return failure_; }
  bool failed_by_request() const { return failed_by_request_; }
  TokenUsage usage() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::deque<AnswerPart> parts_;
  bool closed_ = false;
  std::optional<Error> failure_;
  bool failed_by_request_ = false;
  TokenUsage usage_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace kvant
