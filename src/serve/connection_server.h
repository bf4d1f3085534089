// ConnectionServer is cpp-httplib's server with any number of connections. One thread waits for all clients
// that send nothing, or only part of a request. When a request is complete, a thread of a pool serves the
// request.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/http_connection.h"
#include "serve/request_context.h"
#include "serve/worker_pool.h"

namespace kvant {

struct ConnectionLimits {
  std::size_t workers = 64;             // this many requests are served at the same time
  std::size_t connections = 1000;       // beyond this number, the connection that has been idle longest is
                                        // closed
  std::chrono::seconds keep_alive{75};  // the server closes a connection that has been idle for this long
  std::size_t max_body = 16 << 20;      // bytes
};

class ConnectionServer final : public httplib::Server {
 public:
  using Done = std::function<void(const RequestRecord&)>;

  explicit ConnectionServer(const ConnectionLimits& limits);
  ~ConnectionServer() override;

  // Sets a function that may change a request before routing, for example to accept another spelling of a
  // path. Several threads call the functions `normalize`, `check` and `done` at the same time.
  void set_normalizer(std::function<void(httplib::Request&)> normalize) { normalize_ = std::move(normalize); }
  // Sets a function that runs before a request's body is read (httplib's pre-routing handler).
  void set_check(HandlerWithResponse check) { check_ = std::move(check); }
  // Sets the function that writes the body of a response that has only a status. The server may not have been
  // able to read the request.
  void set_refusal(Handler refuse);
  // Sets a function that runs after each response.
  void set_done(Done done) { done_ = std::move(done); }

  // Serves on the sockets that earlier calls of bind opened, until stop(). Requests that run when stop() is
  // called are finished.
  void serve();

 private:
  struct Serving {
    httplib::Request* request = nullptr;
    RequestContext context;
  };
  using ConnectionPointer = std::shared_ptr<HttpConnection>;

  bool process_and_close_socket(socket_t socket) override;
  HandlerResponse begin(const httplib::Request& request, httplib::Response& response);
  void serve_requests(const ConnectionPointer& connection);
  bool serve_request(HttpConnection& connection);  // returns false after the connection's last request
  bool refuse_head(HttpConnection& connection) const;
  void give_back(ConnectionPointer connection);  // the waiting thread gets the connection

  void wait_for_clients();
  void wait_for(ConnectionPointer connection);
  void take(int socket);
  void look_at(int socket);
  void close_overdue();
  void make_room();

  ConnectionLimits limits_;
  std::function<void(httplib::Request&)> normalize_;
  HandlerWithResponse check_;
  Handler refuse_;
  Done done_;

  std::mutex serving_mutex_;
  // The key is the request that httplib passes to handlers.
  std::map<const httplib::Request*, Serving> serving_;

  std::atomic<bool> ending_{false};
  int epoll_ = -1, wake_ = -1;
  std::atomic<std::size_t> n_connections_{0};
  std::mutex returned_mutex_;
  std::vector<ConnectionPointer> returned_;             // connections that the waiting thread takes over
  std::unordered_map<int, ConnectionPointer> waiting_;  // keyed by socket; only the waiting thread uses the
                                                        // map
  std::unique_ptr<WorkerPool> workers_;
  std::thread waiter_;
};

}  // namespace kvant
