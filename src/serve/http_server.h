// HttpServer serves the endpoints of `kvant serve` over HTTP/1.1.
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
  int port = 8080;                  // 0: any free port
  std::string api_key;              // empty: no key is needed
  std::size_t max_body = 16 << 20;  // bytes
  int requests = 64;                // requests that are served at the same time
  std::size_t connections = 1000;   // connections that are open at the same time
  CorsPolicy cors = {};             // web pages that may use the server
  ServerLog* log = nullptr;         // must outlive the server; null: none
};

// Returns the address as URLs write it: IPv6 in brackets.
std::string url_host(const std::string& host);
// Checks that a server could listen there now. The error says why it could not.
Status check_address(const std::string& host, int port);

class HttpServer {
 public:
  // `loop` and `tokenizer` must outlive the server. `served` has the loop's recipes in the same order. With a
  // null chat_template, the server uses llama.cpp's guess at the model's template, without tools.
  HttpServer(ServeLoop& loop, const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
             std::vector<ServerInfo> served, HttpOptions options);
  ~HttpServer();

  // Takes the port and returns its number.
  Result<int> bind();
  // Serves until stop(), and then finishes the requests that run.
  void serve();
  void stop();  // any thread may call it

 private:
  class Routes;
  std::unique_ptr<Routes> routes_;
};

}  // namespace kvant
