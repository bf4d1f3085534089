// AnswerStream: the way from the scheduler to whoever waits for an answer.
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

// More of one of the answers to a prompt.
struct AnswerPart {
  int answer = 0;  // 0 .. n - 1
  std::string text = {};
  std::vector<ReportedToken> tokens = {};
  GenerationEnd end = GenerationEnd::none;  // otherwise: the last part of this answer
  std::string stop = {};                    // the stop text that has ended it; empty: none
  bool is_prompt = false;                   // it is the prompt, which begins the answer
  std::vector<float> embedding = {};        // of the prompt, where that is all that is wanted
};

// What a guard has seen of an answer (answer_guard.h).
struct GuardTally {
  std::int64_t tokens = 0;
  std::int64_t differing = 0;  // where the shadow would have chosen another one
  double kld_sum = 0;          // nats
  double mean_kld() const { return tokens > 0 ? kld_sum / static_cast<double>(tokens) : 0; }
};

struct TokenUsage {
  int prompt = 0;
  int cached = 0;  // of the prompt: not read, since an earlier one began alike
  int generated = 0;
  int drafted = 0;                  // tokens that were verified in a step with others
  int accepted = 0;                 // of them, those that were right
  std::optional<GuardTally> guard;  // where one was asked for
};

// Thread-safe: one thread writes, one reads.
class AnswerStream {
 public:
  // --- the scheduler ---
  void begin(const TokenUsage& usage);  // of the prompt: it is known what need not be read
  void write(AnswerPart part);
  void close(const TokenUsage& usage);
  // Instead of close(). is_of_request: another request might have been answered.
  void fail(Error failure, bool is_of_request = false);
  bool is_cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // --- the reader ---
  enum class Next { part, closed, nothing_yet };
  // Waits for more, at most that long. part: `into` is it. closed: there is no more.
  Next read(std::chrono::milliseconds patience, AnswerPart& into);
  // Nobody waits any more: the scheduler drops the request before its next step.
  void cancel() { cancelled_.store(true, std::memory_order_release); }

  // After `closed`.
  const std::optional<Error>& failure() const { return failure_; }
  bool failed_by_request() const { return failed_by_request_; }
  TokenUsage usage() const;  // so far

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
