// The web page of `kvant serve`: the files of page/ at / and /page/, and GET /cache, which it shows.
#pragma once

#include <span>
#include <string>

#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace httplib {
class Server;
}

namespace kvant {

// Whether this is the path of one of the page's files, which need no key: they say nothing of the model or of
// anybody's requests.
bool is_page_path(const std::string& path);

void add_page_routes(httplib::Server& server);

// loop and served outlive the server.
void add_cache_route(httplib::Server& server, ServeLoop& loop, std::span<const ServerInfo> served);

}  // namespace kvant
