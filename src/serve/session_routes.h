// Routes /v1/sessions, with which clients manage sessions. Requests continue a session by the parameter
// `session`.
#pragma once

#include "serve/serve_loop.h"

namespace httplib {
class Server;
}

namespace kvant {

// loop outlives the server.
//
//   GET    /v1/sessions                all
//   GET    /v1/sessions/NAME           one
//   POST   /v1/sessions/NAME/save      writes it; when it is answered, the session is on the disk
//   POST   /v1/sessions/NAME/restore   back to what was saved
//   POST   /v1/sessions/NAME/fork      {"to": NAME}: another one that goes on from here
//   DELETE /v1/sessions/NAME           from memory and disk
void add_session_routes(httplib::Server& server, ServeLoop& loop);

}  // namespace kvant
