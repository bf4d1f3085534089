#include "serve/answer_delivery.h"

#include <utility>

namespace kvant {

bool read_answers(const httplib::Request& request, Exchange& exchange,
                  const std::function<void(int choice, const AnswerPart& part)>& add) {
  int choice = 0;
  AnswerPart part;
  while (true) {
    const AnswerStream::Next next = exchange.read(kPatience, choice, part);
    if (next == AnswerStream::Next::closed) return true;
    if (next == AnswerStream::Next::part) add(choice, part);
    if (next == AnswerStream::Next::nothing_yet && request.is_connection_closed()) return false;
  }
}

void stream_answers(httplib::Response& response, const std::shared_ptr<Exchange>& exchange,
                    AnswerEvents events) {
  response.set_header("Cache-Control", "no-cache");
  // Returns false when the client has gone; the exchange goes with this function then.
  const auto provide = [exchange, events = std::move(events), started = false](
                           std::size_t, httplib::DataSink& sink) mutable {
    const auto write = [&sink](const std::string& text) {
      return text.empty() || sink.write(text.data(), text.size());
    };
    int choice = 0;
    AnswerPart part;
    const AnswerStream::Next next = exchange->read(kPatience, choice, part);
    const bool has_news = next != AnswerStream::Next::nothing_yet || exchange->has_begun();
    const bool starts = events.start && !started && has_news;
    started = started || starts;
    const std::string start = starts ? events.start() : "";
    if (next == AnswerStream::Next::nothing_yet)
      return write(start) && (!sink.is_writable || sink.is_writable());
    if (next == AnswerStream::Next::part) return write(start + events.part(choice, part));
    const bool sent = write(start + events.end());
    sink.done();
    return sent;
  };
  response.set_chunked_content_provider("text/event-stream", provide);
}

}  // namespace kvant
