// HttpServer: the endpoints of `kvant serve`, over HTTP/1.1.
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
  int port = 8080;                  // 0: any that is free
  std::string api_key;              // empty: everybody may ask
  std::size_t max_body = 16 << 20;  // bytes
  int requests = 64;                // that are served at the same time
  std::size_t connections = 1000;   // that are open at the same time
  CorsPolicy cors = {};             // whose web pages may ask
  ServerLog* log = nullptr;         // outlives the server; null: none
};

// The address as URLs have it: IPv6 in brackets.
std::string url_host(const std::string& host);
// Whether a server could listen there now. The error says why not.
Status check_address(const std::string& host, int port);

class HttpServer {
 public:
  // loop and tokenizer outlive it. served: the loop's recipes, in its order. chat_template: null: llama.cpp's
  // idea of the model's, without tools.
  HttpServer(ServeLoop& loop, const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
             std::vector<ServerInfo> served, HttpOptions options);
  ~HttpServer();

  // Takes the port. Returns its number, or an error.
  Result<int> bind();
  // Serves until stop(), and until what is being answered then has been.
  void serve();
  void stop();  // from any thread

 private:
  class Routes;
  std::unique_ptr<Routes> routes_;
};

}  // namespace kvant
