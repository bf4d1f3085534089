#include "serve/listening.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvant {
namespace listening_test {

// Listener represents a program that listens on a free port of 127.0.0.1 or ::1 and would share the port.
class Listener {
 public:
  explicit Listener(bool v6) : socket_(socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    sockaddr_in v4{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    auto* address = v6 ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&v4);
    socklen_t size = v6 ? sizeof six : sizeof v4;
    listens_ = bind(socket_, address, size) == 0 && listen(socket_, 1) == 0 &&
               getsockname(socket_, address, &size) == 0;
    port_ = ntohs(v6 ? six.sin6_port : v4.sin_port);
  }
  ~Listener() { close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  bool listens() const { return listens_; }
  int port() const { return port_; }

 private:
  int socket_;
  bool listens_ = false;
  int port_ = 0;
};

void expect_taken(const char* host, int port) {
  const auto address = free_address(host, port);
  ASSERT_FALSE(address.ok()) << host;
  EXPECT_NE(address.error().message.find("another program already listens there"), std::string::npos)
      << address.error().message;
}

TEST(Listening, SharesNoPort) {
  const Listener v4(false);
  ASSERT_TRUE(v4.listens());
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) expect_taken(host, v4.port());
  const Listener v6(true);
  if (!v6.listens()) GTEST_SKIP() << "this machine has no IPv6";
  for (const char* host : {"::1", "::"}) expect_taken(host, v6.port());
}

TEST(Listening, FindsAFreePort) {
  EXPECT_EQ(free_address("127.0.0.1", 0).value(), "127.0.0.1");
  int port = 0;
  {
    const Listener listener(false);
    port = listener.port();
  }
  EXPECT_TRUE(free_address("127.0.0.1", port).ok());
}

TEST(Listening, SaysWhatIsWrongWithAnAddress) {
  // No machine has this address, which is reserved for documentation.
  EXPECT_FALSE(free_address("192.0.2.1", 0).ok());
  EXPECT_FALSE(free_address("no such host", 0).ok());
}

}  // namespace listening_test
}  // namespace kvant
