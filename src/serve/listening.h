// Finds the address on which a server listens.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// Returns the first of a host's addresses that this machine has and that is free. The error says why there is
// none, for example because another program has the port.
Result<std::string> free_address(const std::string& host, int port);
Error port_is_taken(const std::string& host, int port);

// Sets options of a listening socket. It does not share a port with another program, but can use one that a
// server has just left.
void share_no_port(int socket);

}  // namespace kvant
