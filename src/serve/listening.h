// Finds the address on which a server listens, and explains failures in words of the user's options. The
// search takes place before the model is loaded, so a wrong port is reported at once.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// Returns the first address of `host` that belongs to this machine and is free. The error states why there is
// no such address, for example because another program has the port.
Result<std::string> free_address(const std::string& host, int port);
Error port_is_taken(const std::string& host, int port);

// Sets the options of a listening socket. The socket shares its port with no other program, but can use a
// port that a server has just left.
void share_no_port(int socket);

}  // namespace kvant
