// Sends the completions of an exchange to its client, whole or as a stream, in the format of the client's
// API. Both ways fill the request's log record.
#pragma once

#include <httplib.h>

#include <functional>
#include <memory>
#include <string>

#include "serve/exchange.h"

namespace kvant {

// Calls add(choice, part) for every part until all completions have ended. It returns false if the client has
// gone, which it notices within about a tenth of a second, whatever runs meanwhile.
bool read_answers(const httplib::Request& request, Exchange& exchange,
                  const std::function<void(int choice, const AnswerPart& part)>& add);

// Clients ignore this comment in a stream of server-sent events.
inline constexpr const char* kSseComment = ": still at work\n\n";

// Functions that return what is to be sent: events with their separators, or an empty text for nothing.
struct AnswerEvents {
  std::function<std::string()> start;  // called when prefill begins; null: sends nothing
  std::function<std::string(int choice, const AnswerPart& part)> part;
  std::function<std::string()> end;  // called after the last part or a failure
  // Sent after `start` if nothing else was sent for some seconds, because a proxy could take the connection
  // for dead. Before `start` a comment is sent.
  std::string heartbeat = kSseComment;
};
void stream_answers(httplib::Response& response, const std::shared_ptr<Exchange>& exchange,
                    AnswerEvents events);

}  // namespace kvant
