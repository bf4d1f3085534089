// Sends the completions of an exchange to its client, whole or as a stream, in the format of the client's
// API. Either way, the request's log record is filled in.
#pragma once

#include <httplib.h>

#include <functional>
#include <memory>
#include <string>

#include "serve/exchange.h"

namespace kvant {

// Calls add(choice, part) for every part until all completions have ended. `choice` is the completion's
// number among all completions of the request. Returns false if the client has gone. The function notices a
// client's departure within about a tenth of a second, even while the model computes.
bool read_answers(const httplib::Request& request, Exchange& exchange,
                  const std::function<void(int choice, const AnswerPart& part)>& add);

// This line is a comment in the syntax of server-sent events. Clients ignore comments.
inline constexpr const char* kSseComment = ": still at work\n\n";

// AnswerEvents holds the functions that format a stream. Each function returns complete events with their
// separators, or an empty string if there is nothing to send.
struct AnswerEvents {
  std::function<std::string()> start;  // this is called when prefill begins; null sends nothing
  std::function<std::string(int choice, const AnswerPart& part)> part;
  std::function<std::string()> end;  // this is called after the last part or a failure
  // The stream sends this text after some seconds of silence, because a proxy could take the connection for
  // dead. Before `start`, the stream sends kSseComment instead.
  std::string heartbeat = kSseComment;
};
void stream_answers(httplib::Response& response, const std::shared_ptr<Exchange>& exchange,
                    AnswerEvents events);

}  // namespace kvant
