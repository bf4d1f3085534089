// Routes the web page of `kvant serve`: the page's files at / and /page/, and GET /cache, whose data the page
// shows. The files are embedded in the program, so the page needs no other server.
#pragma once

#include <span>
#include <string>

#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace httplib {
class Server;
}

namespace kvant {

// Returns whether `path` is one of the page's files. Clients need no key for these files, because the files
// reveal nothing about the model or about requests.
bool is_page_path(const std::string& path);

void add_page_routes(httplib::Server& server);

// Adds the route GET /cache to the server. `loop` and `served` must outlive the server.
void add_cache_route(httplib::Server& server, ServeLoop& loop, std::span<const ServerInfo> served);

}  // namespace kvant
