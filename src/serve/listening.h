// The address that a server listens on.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// The address of a host that a server can listen on: the first of its addresses that this machine has. The
// error says why there is none: another program has the port, for one.
Result<std::string> free_address(const std::string& host, int port);
Error port_is_taken(const std::string& host, int port);

// Options of a listening socket: a port that another program listens on is not shared with it, but one that a
// server has just left can be had at once.
void share_no_port(int socket);

}  // namespace kvant
