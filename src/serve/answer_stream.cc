#include "serve/answer_stream.h"

namespace kvant {

void AnswerStream::begin(const TokenUsage& usage) {
  const std::lock_guard lock(mutex_);
  usage_ = usage;
}

TokenUsage AnswerStream::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void AnswerStream::write(AnswerPart part) {
  const std::lock_guard lock(mutex_);
  parts_.push_back(std::move(part));
  news_.notify_one();
}

void AnswerStream::close(const TokenUsage& usage) {
  const std::lock_guard lock(mutex_);
  usage_ = usage;
  closed_ = true;
  news_.notify_one();
}

void AnswerStream::fail(Error failure, bool is_of_request) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  failed_by_request_ = is_of_request;
  closed_ = true;
  news_.notify_one();
}

AnswerStream::Next AnswerStream::read(std::chrono::milliseconds patience, AnswerPart& into) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, patience, [&] { return closed_ || !parts_.empty(); });
  if (!parts_.empty()) {
    into = std::move(parts_.front());
    parts_.pop_front();
    return Next::part;
  }
  return closed_ ? Next::closed : Next::nothing_yet;
}

}  // namespace kvant
