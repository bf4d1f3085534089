#include "serve/answer_delivery.h"

#include <utility>

#include "serve/request_context.h"

namespace kvant {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// After this much silence, a stream sends a heartbeat so the client and proxies see that the server is alive.
constexpr auto kHeartbeat = 5s;
// After a client has stopped sending, a stream first waits this long before it tests whether the client is
// gone. Each further wait is twice as long.
constexpr auto kFirstSign = 100ms;

const char* end_name(GenerationEnd end) {
  switch (end) {
    case GenerationEnd::none:
      return "";
    case GenerationEnd::finished:
      return "stop";
    case GenerationEnd::length:
      return "length";
    case GenerationEnd::stuck:
      return "grammar stuck";
    case GenerationEnd::lost:
      return "grammar lost";
  }
  return "";
}

// Record fills in the log record of a request from the exchange of that request. Record does nothing if the
// request has no log record.
class Record {
 public:
  Record(const RequestContext* context, const Exchange& exchange)
      : record_(context != nullptr ? context->record : nullptr) {
    if (record_ != nullptr) record_->model = exchange.model();
  }

  void add(const AnswerPart& part) {
    if (record_ == nullptr) return;
    if (!record_->first_token_seconds)
      record_->first_token_seconds = std::chrono::duration<double>(Clock::now() - record_->start).count();
    if (part.end != GenerationEnd::none) record_->end = end_name(part.end);
  }

  void end(const Exchange& exchange) {
    if (record_ == nullptr) return;
    count(exchange);
    record_->generated_tokens = exchange.usage().generated;
    if (exchange.failure()) record_->end = "failed";
  }

  void client_left(const Exchange& exchange) {
    if (record_ == nullptr) return;
    count(exchange);
    record_->end = "client left";
  }

 private:
  void count(const Exchange& exchange) {
    const TokenUsage usage = exchange.usage();
    record_->prompt_tokens = usage.prompt;
    record_->cached_tokens = usage.cached;
  }

  RequestRecord* record_;
};

// Delivery is a stream of server-sent events on its way to the client.
class Delivery {
 public:
  Delivery(const RequestContext* context, std::shared_ptr<Exchange> exchange, AnswerEvents events)
      : connection_(context != nullptr ? context->connection : nullptr),
        record_(context, *exchange),
        exchange_(std::move(exchange)),
        events_(std::move(events)) {}

  ~Delivery() {
    if (!ended_) record_.client_left(*exchange_);
  }
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // Sends the parts that are ready, after waiting at most kPatience. Returns false if the client has gone.
  bool go_on(httplib::DataSink& sink) {
    int choice = 0;
    AnswerPart part;
    const AnswerStream::Next next = exchange_->read(kPatience, choice, part);
    const bool has_news = next != AnswerStream::Next::nothing_yet || exchange_->has_begun();
    std::string text;
    if (has_news && !std::exchange(started_, true) && events_.start) text = events_.start();
    if (next == AnswerStream::Next::part) {
      record_.add(part);
      text += events_.part(choice, part);
    }
    const bool ends = next == AnswerStream::Next::closed;
    if (ends) text += events_.end();
    if (text.empty() && wants_heartbeat()) text = started_ ? events_.heartbeat : kSseComment;
    if (!write(sink, text)) return false;
    if (!ends) return true;
    ended_ = true;
    record_.end(*exchange_);
    sink.done();
    return true;
  }

 private:
  // A client that closed its connection cannot be told from a client that only stopped sending, until the
  // client's system refuses a packet. A heartbeat, sent after longer and longer pauses, provokes that
  // refusal.
  bool wants_heartbeat() {
    const Clock::time_point now = Clock::now();
    if (now - written_ >= kHeartbeat) return true;
    if (connection_ == nullptr || !connection_->has_stopped_sending()) return false;
    if (now - written_ < sign_pause_) return false;
    sign_pause_ *= 2;
    return true;
  }

  bool write(httplib::DataSink& sink, const std::string& text) {
    if (text.empty()) return !sink.is_writable || sink.is_writable();
    written_ = Clock::now();
    return sink.write(text.data(), text.size());
  }

  HttpConnection* connection_;
  Record record_;
  std::shared_ptr<Exchange> exchange_;
  AnswerEvents events_;
  bool started_ = false, ended_ = false;
  Clock::time_point written_ = Clock::now();
  Clock::duration sign_pause_ = kFirstSign;
};

}  // namespace

bool read_answers(const httplib::Request& request, Exchange& exchange,
                  const std::function<void(int choice, const AnswerPart& part)>& add) {
  Record record(context_of(request), exchange);
  int choice = 0;
  AnswerPart part;
  Clock::time_point next_look = Clock::now();
  while (true) {
    const AnswerStream::Next next = exchange.read(kPatience, choice, part);
    if (next == AnswerStream::Next::closed) {
      record.end(exchange);
      return true;
    }
    if (next == AnswerStream::Next::part) {
      record.add(part);
      add(choice, part);
    }
    if (Clock::now() < next_look) continue;
    next_look = Clock::now() + kPatience;
    if (!request.is_connection_closed()) continue;
    record.client_left(exchange);
    return false;
  }
}

void stream_answers(httplib::Response& response, const std::shared_ptr<Exchange>& exchange,
                    AnswerEvents events) {
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");  // this makes nginx pass each event on at once
  // The provider owns the exchange, so the requests to the scheduler end together with the stream.
  const auto delivery = std::make_shared<Delivery>(context_of(response), exchange, std::move(events));
  const auto provide = [delivery](std::size_t, httplib::DataSink& sink) { return delivery->go_on(sink); };
  const RequestContext* context = context_of(response);
  if (context == nullptr || context->knows_chunks)
    return response.set_chunked_content_provider("text/event-stream", provide);
  // An HTTP/1.0 client recognizes the end of the stream by the closed connection.
  context->connection->close_after_response();
  response.set_content_provider("text/event-stream", provide);
}

}  // namespace kvant
