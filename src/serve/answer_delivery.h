// How the answers of an exchange go to its client, whole or as they come, in whatever format its API has.
// Both ways write into the request's record, for the log.
#pragma once

#include <httplib.h>

#include <functional>
#include <memory>
#include <string>

#include "serve/exchange.h"

namespace kvant {

// Calls add(choice, part) for every part until all answers have ended. False: the client has gone, which is
// noticed within about a tenth of a second whatever is generated or read meanwhile.
bool read_answers(const httplib::Request& request, Exchange& exchange,
                  const std::function<void(int choice, const AnswerPart& part)>& add);

// A comment of server-sent events: clients leave it aside.
inline constexpr const char* kSseComment = ": still at work\n\n";

// What is sent as it is, events with their separators; empty: nothing.
struct AnswerEvents {
  std::function<std::string()> start;  // when the prompt begins to be read; null: nothing
  std::function<std::string(int choice, const AnswerPart& part)> part;
  std::function<std::string()> end;  // after the last one, or a failure
  // Sent after `start` when nothing else has been sent for some seconds, so nobody on the way takes the
  // connection for dead. Before `start` it is a comment.
  std::string heartbeat = kSseComment;
};
void stream_answers(httplib::Response& response, const std::shared_ptr<Exchange>& exchange,
                    AnswerEvents events);

}  // namespace kvant
