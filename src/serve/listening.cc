#include "serve/listening.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace kvant {
namespace {

// Returns the error of bind() for an address, or 0 if the address is free.
int bind_error(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return errno;
  share_no_port(socket);
  // httplib's "::" also accepts IPv4 connections, so this test must accept them, too.
  if (address.ai_family == AF_INET6) {
    const int off = 0;
    setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  const int failure = bind(socket, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  close(socket);
  return failure;
}

std::string numeric(const addrinfo& address) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address.ai_addr, address.ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

}  // namespace

void share_no_port(int socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

Error port_is_taken(const std::string& host, int port) {
  return error(
      "cannot listen on port {} of {}: another program already listens there; choose another port with "
      "--port",
      port, host);
}

Result<std::string> free_address(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      failure != 0)
    return error("cannot listen on '{}': {}; give an address of this machine with --host", host,
                 gai_strerror(failure));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  int last = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    last = bind_error(*address);
    if (last == 0) return numeric(*address);
    // Another address of the host may be free. But clients that use this address would then reach the program
    // that already listens here, so the search ends.
    if (last == EADDRINUSE) return port_is_taken(host, port);
  }
  if (last == EACCES)
    return error(
        "cannot listen on port {}: ports below 1024 need system privileges; choose another one with --port",
        port);
  return error("cannot listen on '{}': {}; give an address of this machine with --host", host,
               std::strerror(last));
}

}  // namespace kvant
