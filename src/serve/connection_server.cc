#include "serve/connection_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "serve/api_response.h"

namespace kvant {
namespace {

constexpr int kLookMilliseconds = 250;  // pause between two searches for overdue connections
constexpr std::size_t kRequestsOfAConnection = 100000;
constexpr std::size_t kLongestId = 128;
// All incomplete requests together may occupy this many bytes.
constexpr std::size_t kMostBuffered = 512 << 20;

// httplib gives accepted sockets to a task queue. The task only hands the socket to the waiting thread, so
// the queue runs it at once.
class AtOnce final : public httplib::TaskQueue {
 public:
  bool enqueue(std::function<void()> task) override {
    task();
    return true;
  }
  void shutdown() override {}
};

// An HTTP/1.1 connection stays open unless one side says "close". An HTTP/1.0 connection closes unless both
// sides say "keep-alive".
void say_whether_kept(const httplib::Request& request, httplib::Response& response) {
  const RequestContext* context = context_of(response);
  const bool is_old = request.version == "HTTP/1.0";
  const bool closes =
      response.get_header_value("Connection") == "close" ||
      (context != nullptr && context->connection->said_close()) ||
      (is_old && !httplib::detail::has_header_token(request.headers, "Connection", "keep-alive"));
  if (!closes && !is_old) return;
  response.headers.erase("Connection");
  response.set_header("Connection", closes ? "close" : "keep-alive");
  if (closes) response.headers.erase("Keep-Alive");
}

// Returns the client's own id if the client sent one, because a proxy's log has the same id. Otherwise the id
// is random.
std::string id_of(const httplib::Request& request) {
  const std::string given = request.get_header_value("x-request-id");
  const bool is_id = !given.empty() && given.size() <= kLongestId && std::ranges::all_of(given, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
  return is_id ? given : random_id("req-");
}

}  // namespace

ConnectionServer::ConnectionServer(const ConnectionLimits& limits) : limits_(limits) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  KVANT_CHECK(epoll_ >= 0 && wake_ >= 0, "the system has no epoll");
  epoll_event event{.events = EPOLLIN, .data = {.fd = wake_}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
  new_task_queue = [] { return new AtOnce; };
  set_payload_max_length(limits.max_body);
  set_keep_alive_timeout(limits.keep_alive.count());
  set_keep_alive_max_count(kRequestsOfAConnection);
  set_tcp_nodelay(true);
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    return begin(request, response);
  });
  set_post_routing_handler(say_whether_kept);
}

ConnectionServer::~ConnectionServer() {
  close(epoll_);
  close(wake_);
}

void ConnectionServer::serve() {
  workers_ = std::make_unique<WorkerPool>(limits_.workers);
  waiter_ = std::thread([this] { wait_for_clients(); });
  listen_after_bind();
  ending_ = true;
  eventfd_write(wake_, 1);
  waiter_.join();
  workers_.reset();
  returned_.clear();
}

// Worker threads call begin() and the functions from refuse_head() to serve_requests().

ConnectionServer::HandlerResponse ConnectionServer::begin(const httplib::Request& request,
                                                          httplib::Response& response) {
  Serving serving;
  {
    const std::lock_guard lock(serving_mutex_);
    serving = serving_.at(&request);
  }
  serving.request->is_connection_closed = serving.context;
  response.user_data.set(kContextKey, serving.context);
  RequestRecord& record = *serving.context.record;
  record.id = id_of(request);
  record.method = request.method;
  record.path = request.path;
  response.set_header("x-request-id", record.id);
  // The server refuses a body that is too large before any thread waits for the rest of the body.
  HttpConnection& connection = *serving.context.connection;
  if (connection.is_too_large() || request.get_header_value_u64("Content-Length", 0) > limits_.max_body) {
    connection.close_after_response();
    response.status = httplib::StatusCode::PayloadTooLarge_413;
    return HandlerResponse::Handled;
  }
  return check_ ? check_(request, response) : HandlerResponse::Unhandled;
}

void ConnectionServer::set_refusal(Handler refuse) {
  refuse_ = refuse;
  set_error_handler(std::move(refuse));
}

bool ConnectionServer::refuse_head(HttpConnection& connection) const {
  httplib::Response response;
  response.status = connection.head_fault();
  if (refuse_) refuse_({}, response);
  const std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n{}",
                  response.status, httplib::status_message(response.status),
                  response.get_header_value("Content-Type"), response.body.size(), response.body);
  return connection.write(text.data(), text.size()) == std::ssize(text);
}

bool ConnectionServer::serve_request(HttpConnection& connection) {
  RequestRecord record;
  record.client = connection.client();
  bool is_last = false;
  const httplib::Request* served = nullptr;
  const bool ok = serve_guarded([&] {
    if (connection.head_fault() != 0) return refuse_head(connection);
    return process_request(
        connection, connection.client(), connection.client_port(), "", 0,
        /*close_connection=*/false, is_last, [&](httplib::Request& request) {
          if (normalize_) normalize_(request);
          served = &request;
          const std::lock_guard lock(serving_mutex_);
          serving_[served] = {&request, {&connection, &record, request.version != "HTTP/1.0"}};
        });
  });
  {
    const std::lock_guard lock(serving_mutex_);
    serving_.erase(served);
  }
  if (record.status == 0) record.status = connection.status();
  record.seconds = std::chrono::duration<double>(RequestRecord::Clock::now() - record.start).count();
  if (done_) done_(record);
  // If no request was served, nobody knows where the next request starts, so the connection must close.
  return ok && served != nullptr && !is_last && !connection.said_close();
}

void ConnectionServer::serve_requests(const ConnectionPointer& connection) {
  while (true) {
    if (!serve_request(*connection)) {
      connection->begin_closing();
      break;
    }
    connection->next_request();
    if (ending_ || connection->gather(limits_.max_body) != HttpConnection::Arrived::request) break;
  }
  give_back(connection);
}

// Any thread may call process_and_close_socket() and give_back(). The waiting thread calls the functions from
// wait_for_clients() to make_room().

bool ConnectionServer::process_and_close_socket(socket_t socket) {
  ++n_connections_;
  give_back(ConnectionPointer(new HttpConnection(socket, ending_), [this](HttpConnection* connection) {
    delete connection;
    --n_connections_;
  }));
  return true;
}

void ConnectionServer::give_back(ConnectionPointer connection) {
  const std::lock_guard lock(returned_mutex_);
  if (ending_) return;
  returned_.push_back(std::move(connection));
  eventfd_write(wake_, 1);
}

void ConnectionServer::wait_for_clients() {
  std::array<epoll_event, 64> events;
  auto next_look = HttpConnection::Clock::now();
  while (!ending_) {
    const int n = epoll_wait(epoll_, events.data(), events.size(), kLookMilliseconds);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.fd != wake_) look_at(events[i].data.fd);
    }
    eventfd_t count = 0;
    eventfd_read(wake_, &count);
    std::vector<ConnectionPointer> returned;
    {
      const std::lock_guard lock(returned_mutex_);
      returned.swap(returned_);
    }
    for (ConnectionPointer& connection : returned) wait_for(std::move(connection));
    if (n_connections_ > limits_.connections) make_room();
    if (HttpConnection::Clock::now() < next_look) continue;
    close_overdue();
    next_look = HttpConnection::Clock::now() + std::chrono::milliseconds(kLookMilliseconds);
  }
  waiting_.clear();
}

void ConnectionServer::wait_for(ConnectionPointer connection) {
  const int socket = connection->socket();
  waiting_[socket] = std::move(connection);
  epoll_event event{.events = EPOLLIN, .data = {.fd = socket}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event);
  look_at(socket);  // the connection may have buffered bytes, which epoll does not report
}

void ConnectionServer::take(int socket) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
  waiting_.erase(socket);
}

void ConnectionServer::look_at(int socket) {
  const auto found = waiting_.find(socket);
  if (found == waiting_.end()) return;
  const ConnectionPointer connection = found->second;
  switch (connection->gather(limits_.max_body)) {
    case HttpConnection::Arrived::part:
      return;
    case HttpConnection::Arrived::end:
      return take(socket);
    case HttpConnection::Arrived::request:
      take(socket);
      workers_->run([this, connection] { serve_requests(connection); });
      return;
  }
}

void ConnectionServer::close_overdue() {
  const auto now = HttpConnection::Clock::now();
  std::vector<int> overdue;
  for (const auto& [socket, connection] : waiting_) {
    if (connection->deadline(limits_.keep_alive) <= now) overdue.push_back(socket);
  }
  for (const int socket : overdue) take(socket);
  // These clients have shown no API key yet, so their incomplete bodies must not fill memory.
  const auto n_buffered = [](const auto& each) { return each.second->n_buffered(); };
  std::size_t sum = 0;
  for (const auto& each : waiting_) sum += n_buffered(each);
  while (sum > kMostBuffered) {
    const auto largest = std::ranges::max_element(waiting_, {}, n_buffered);
    sum -= n_buffered(*largest);
    take(largest->first);
  }
}

void ConnectionServer::make_room() {
  std::vector<std::pair<HttpConnection::Clock::time_point, int>> idle;
  for (const auto& [socket, connection] : waiting_) {
    if (connection->is_idle()) idle.emplace_back(connection->last_use(), socket);
  }
  const std::size_t n = std::min(idle.size(), n_connections_ - limits_.connections);
  std::ranges::partial_sort(idle, idle.begin() + static_cast<std::ptrdiff_t>(n));
  for (std::size_t i = 0; i < n; ++i) take(idle[i].second);
}

}  // namespace kvant
