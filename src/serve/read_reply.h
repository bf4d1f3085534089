// Sends requests to a scheduler and reads their streams, for tests. The scheduler runs on the test's thread,
// step by step, so tests are deterministic.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "serve/scheduler.h"

namespace kvant::testing {

// ReadReply collects all parts of one request's completions.
struct ReadReply {
  std::string text;
  GenerationEnd end = GenerationEnd::none;
  std::vector<ReportedToken> tokens;
  std::string failure;
  bool failed_by_request = false;
  std::vector<AnswerPart> parts;
  int cached = 0;  // prompt tokens from the prefix cache
  std::optional<GuardTally> guard;

  std::vector<std::int32_t> tokens_of(int answer) const {
    std::vector<std::int32_t> found;
    for (const AnswerPart& part : parts) {
      if (part.answer != answer) continue;
      for (const ReportedToken& token : part.tokens) found.push_back(token.chosen.token);
    }
    return found;
  }
};

inline ReadReply read_reply(AnswerStream& stream) {
  ReadReply reply;
  AnswerPart part;
  while (stream.read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
    reply.text += part.text;
    reply.end = part.end;
    reply.tokens.insert(reply.tokens.end(), part.tokens.begin(), part.tokens.end());
    reply.parts.push_back(part);
  }
  if (stream.failure()) reply.failure = stream.failure()->message;
  reply.failed_by_request = stream.failed_by_request();
  reply.cached = stream.usage().cached;
  reply.guard = stream.usage().guard;
  return reply;
}

// Submits all requests, runs the scheduler until it is idle, and reads the streams.
inline std::vector<ReadReply> ask(Scheduler& scheduler, const std::vector<GenerationRequest>& requests) {
  std::vector<std::shared_ptr<AnswerStream>> streams;
  streams.reserve(requests.size());
  for (const GenerationRequest& r : requests) {
    streams.push_back(std::make_shared<AnswerStream>());
    EXPECT_FALSE(scheduler.submit(r, streams.back()));
  }
  while (!scheduler.idle()) scheduler.step();
  std::vector<ReadReply> replies;
  replies.reserve(streams.size());
  for (const auto& stream : streams) replies.push_back(read_reply(*stream));
  return replies;
}

}  // namespace kvant::testing
