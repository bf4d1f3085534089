// Routes /v1/sessions, with which clients manage sessions. A request continues a session through the
// parameter `session`.
#pragma once

#include "serve/serve_loop.h"

namespace httplib {
class Server;
}

namespace kvant {

// Adds the routes of this list. `loop` must outlive the server.
//
//     GET    /v1/sessions                lists all sessions
//     GET    /v1/sessions/NAME           describes one session
//     POST   /v1/sessions/NAME/save      writes the session and responds once it is on disk
//     POST   /v1/sessions/NAME/restore   returns to the state that was saved
//     POST   /v1/sessions/NAME/fork      {"to": NAME} makes another session with the same state
//     DELETE /v1/sessions/NAME           removes the session from memory and disk
void add_session_routes(httplib::Server& server, ServeLoop& loop);

}  // namespace kvant
