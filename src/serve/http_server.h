// HttpServer serves the endpoints of `kvant serve` over HTTP/1.1. The server checks requests, routes them,
// and logs them. ServeLoop has the scheduler and the model.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/chat_template.h"
#include "model/tokenizer.h"
#include "serve/cors.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"
#include "serve/server_log.h"

namespace kvant {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                  // 0 means any free port
  std::string api_key;              // if empty, clients need no key
  std::size_t max_body = 16 << 20;  // bytes
  int requests = 64;                // this many requests are served at the same time
  std::size_t connections = 1000;   // this many connections may be open at the same time
  CorsPolicy cors = {};             // decides which web pages may use the server
  ServerLog* log = nullptr;         // the log must outlive the server; null if there is none
};

// Returns the host in the form for URLs, in which an IPv6 address has brackets.
std::string url_host(const std::string& host);
// Checks whether a server could listen on the address now. The error states the cause.
Status check_address(const std::string& host, int port);

class HttpServer {
 public:
  // `loop` and `tokenizer` must outlive the server. `served` describes the loop's recipes in the loop's
  // order. A null chat_template means that the model has none.
  HttpServer(ServeLoop& loop, const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
             std::vector<ServerInfo> served, HttpOptions options);
  ~HttpServer();

  // Takes the port and returns the port's number.
  Result<int> bind();
  // Serves until stop(). Requests that run when stop() is called are finished.
  void serve();
  void stop();  // any thread may call stop()

 private:
  class Routes;
  std::unique_ptr<Routes> routes_;
};

}  // namespace kvant
