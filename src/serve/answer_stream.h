// AnswerStream carries a completion from the scheduler to the thread that waits for it.
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

// Carries the next part of one of a prompt's completions.
struct AnswerPart {
  int answer = 0;  // 0 .. n - 1
  std::string text = {};
  std::vector<ReportedToken> tokens = {};
  GenerationEnd end = GenerationEnd::none;  // not none: this is the completion's last part
  std::string stop = {};                    // the stop text that ended the completion; empty: none
  bool is_prompt = false;                   // the part is the prompt, with which the completion begins
  std::vector<float> embedding = {};        // the prompt's embedding, if the request wants only that
};

// Holds what a guard measured in a completion (answer_guard.h).
struct GuardTally {
  std::int64_t tokens = 0;
  std::int64_t differing = 0;  // tokens for which the shadow would have chosen another one
  double kld_sum = 0;          // nats
  double mean_kld() const { return tokens > 0 ? kld_sum / static_cast<double>(tokens) : 0; }
};

struct TokenUsage {
  int prompt = 0;
  int cached = 0;  // prompt tokens that were not read, because an earlier prompt had the same prefix
  int generated = 0;
  int drafted = 0;                  // draft tokens that were verified
  int accepted = 0;                 // draft tokens that were right
  std::optional<GuardTally> guard;  // set if the request asked for a guard
};

// Thread-safe: one thread writes and one reads.
class AnswerStream {
 public:
  // --- the scheduler ---
  void begin(const TokenUsage& usage);  // the prompt's usage, as soon as the cached prefix is known
  void write(AnswerPart part);
  void close(const TokenUsage& usage);
  // Ends the stream instead of close(). is_of_request: another request might have succeeded.
  void fail(Error failure, bool is_of_request = false);
  bool is_cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // --- the reader ---
  enum class Next { part, closed, nothing_yet };
  // Waits for the next part, at most `patience`. With `part`, it is in `into`; `closed` means that no more
  // comes.
  Next read(std::chrono::milliseconds patience, AnswerPart& into);
  // Tells the scheduler that nobody waits any more; it drops the request before its next step.
  void cancel() { cancelled_.store(true, std::memory_order_release); }

  // The result is valid after `closed`.
  const std::optional<Error>& failure() const { return failure_; }
  bool failed_by_request() const { return failed_by_request_; }
  TokenUsage usage() const;  // usage so far

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
