// Routes the web page of `kvant serve`: the files of page/ at / and /page/, and GET /cache, whose data the
// page shows.
#pragma once

#include <span>
#include <string>

#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace httplib {
class Server;
}

namespace kvant {

// Returns whether this is a path of the page's files. They need no key, because they reveal nothing about the
// model or about requests.
bool is_page_path(const std::string& path);

void add_page_routes(httplib::Server& server);

// `loop` and `served` must outlive the server.
void add_cache_route(httplib::Server& server, ServeLoop& loop, std::span<const ServerInfo> served);

}  // namespace kvant
