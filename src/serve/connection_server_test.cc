#include "serve/connection_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/heap.h"

namespace kvant {
namespace connection_server_test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Client is a TCP client that sends arbitrary bytes.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { leave(); }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), text_(std::move(other.text_)) {}
  Client& operator=(Client&&) = delete;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void leave() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  void stop_sending() const { shutdown(socket_, SHUT_WR); }
  void say(std::string_view text) const {
    EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  void get(const std::string& path, const std::string& headers = "") const {
    say("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
  }

  // Returns all bytes received until `end` has come, the server has closed the connection, or the time is up.
  std::string hear(std::string_view end, std::chrono::milliseconds patience = 5s) {
    const auto limit = Clock::now() + patience;
    while (text_.find(end) == std::string::npos) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
      pollfd state{.fd = socket_, .events = POLLIN, .revents = 0};
      if (left <= 0ms || poll(&state, 1, static_cast<int>(left.count())) <= 0) break;
      std::array<char, 4096> block;
      const ssize_t n = recv(socket_, block.data(), block.size(), 0);
      if (n <= 0) {
        closed_ = true;
        break;
      }
      text_.append(block.data(), static_cast<std::size_t>(n));
    }
    const std::size_t found = text_.find(end);
    std::string heard = text_.substr(0, found == std::string::npos ? found : found + end.size());
    text_.erase(0, heard.size());
    return heard;
  }
  // Returns whether the server closes the connection within `patience`.
  bool is_closed(std::chrono::milliseconds patience = 3s) {
    hear("what no server says", patience);
    return closed_;
  }

 private:
  int socket_;
  std::string text_;
  bool closed_ = false;
};

constexpr const char* kHello = "hello from the server";
constexpr const char* kRefused = "something is wrong";

class ConnectionServerTest : public ::testing::Test {
 protected:
  void start(ConnectionLimits limits = {.workers = 2}) {
    server_ = std::make_unique<ConnectionServer>(limits);
    server_->Get("/hello", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(kHello, "text/plain");
    });
    server_->Post("/take", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(kHello, "text/plain");
    });
    server_->Post("/echo", [](const httplib::Request& request, httplib::Response& response) {
      response.set_content("[" + request.body + "]", "text/plain");
    });
    // The handler of /wait runs until its client leaves or wait_seconds_ have passed.
    server_->Post("/wait", [this](const httplib::Request& request, httplib::Response& response) {
      ++n_waiting_;
      const auto begin = Clock::now();
      while (seconds_since(begin) < wait_seconds_ && !has_left_) {
        std::this_thread::sleep_for(10ms);
        if (request.is_connection_closed()) has_left_ = true;
      }
      response.set_content(kHello, "text/plain");
    });
    server_->set_refusal([](const httplib::Request&, httplib::Response& response) {
      response.set_content(kRefused, "text/plain");
    });
    server_->set_done([this](const RequestRecord& record) {
      const std::lock_guard lock(mutex_);
      records_.push_back(record);
    });
    port_ = server_->bind_to_any_port("127.0.0.1");
    ASSERT_GT(port_, 0);
    thread_ = std::thread([this] { server_->serve(); });
  }
  void TearDown() override { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
  }
  Client client() const { return Client(port_); }
  std::vector<RequestRecord> records() {
    const std::lock_guard lock(mutex_);
    return records_;
  }

  std::unique_ptr<ConnectionServer> server_;
  int port_ = 0;
  std::thread thread_;
  std::atomic<int> n_waiting_{0};
  std::atomic<bool> has_left_{false};
  double wait_seconds_ = 2;
  std::mutex mutex_;
  std::vector<RequestRecord> records_;
};

TEST_F(ConnectionServerTest, KeepsConnectionsForTheNextRequest) {
  start();
  Client one = client();
  for (int i = 0; i < 3; ++i) {
    one.get("/hello");
    EXPECT_NE(one.hear(kHello).find("200 OK"), std::string::npos);
  }
  one.get("/hello", "Connection: close\r\n");
  one.hear(kHello);
  EXPECT_TRUE(one.is_closed());
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ConnectionServerTest, KeepsConnectionsOfOlderClientsWhereTheyAskForIt) {
  start();
  Client old = client();
  for (int i = 0; i < 2; ++i) {
    old.say("GET /hello HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    const std::string heard = old.hear(kHello);
    EXPECT_TRUE(has(heard, "200 OK") && has(heard, "Connection: keep-alive\r\n")) << heard;
  }
  old.say("GET /hello HTTP/1.0\r\n\r\n");
  const std::string heard = old.hear(kHello);
  EXPECT_TRUE(has(heard, "Connection: close\r\n")) << heard;
  EXPECT_FALSE(has(heard, "Keep-Alive:")) << heard;
  EXPECT_TRUE(old.is_closed());
  Client fails = client();
  fails.say("GET /nothing HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(has(fails.hear("\r\n\r\n"), "Connection: close\r\n"));
  EXPECT_TRUE(fails.is_closed());
}

TEST_F(ConnectionServerTest, SkipsEmptyLinesBeforeARequest) {
  start();
  Client one = client();
  for (const char* before : {"\r\n", "\r\n\r\n", "\n"}) {
    one.say(before);
    one.get("/hello");
    EXPECT_TRUE(has(one.hear(kHello), "200 OK"));
  }
  one.say("\r");
  std::this_thread::sleep_for(20ms);
  one.say("\nPOST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n\r\nab\r\n");
  EXPECT_TRUE(has(one.hear("]"), "[\r\nab]"));
  one.get("/hello");
  EXPECT_TRUE(has(one.hear(kHello), "200 OK"));
}

// httplib would make a thread wait for the rest of these heads.
TEST_F(ConnectionServerTest, RefusesHeadsThatHttplibWouldWaitFor) {
  start({.workers = 1});
  for (const std::string& head :
       {std::string("GET /hello HTTP/1.1\nHost: x\n\n"), std::string("GET /hello HTTP/1.1\r\nHost: x\n\r\n"),
        std::string("\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 11)}) {
    Client one = client();
    const auto begin = Clock::now();
    one.say(head);
    EXPECT_TRUE(has(one.hear(kRefused), "HTTP/1.1 400 Bad Request\r\n")) << head;
    EXPECT_TRUE(one.is_closed());
    EXPECT_LT(seconds_since(begin), 2);
  }
}

TEST_F(ConnectionServerTest, TellsMethodsAndVersionsThatItDoesNotHaveFromMalformedRequests) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {"TRACE /hello HTTP/1.1", "501 Not Implemented"},
      {"CONNECT example.com:443 HTTP/1.1", "501 Not Implemented"},
      {"PROPFIND /hello HTTP/1.1", "501 Not Implemented"},
      {"get /hello HTTP/1.1", "501 Not Implemented"},
      {"PRI * HTTP/2.0", "505 HTTP Version Not Supported"},
      {"GET /hello HTTP/3", "505 HTTP Version Not Supported"},
      {"GET /hello HTTP/0.9", "505 HTTP Version Not Supported"},
      {"GET /hello", "400 Bad Request"},
      {"GET", "400 Bad Request"},
      {"GET /hel lo HTTP/1.1", "400 Bad Request"},
      {"GET /hello FTP/1.1", "400 Bad Request"},
  };
  for (const auto& [line, status] : cases) {
    Client one = client();
    one.say(std::string(line) + "\r\nHost: x\r\n\r\nSM\r\n\r\n");
    EXPECT_TRUE(has(one.hear(kRefused), std::string("HTTP/1.1 ") + status + "\r\n")) << line;
    EXPECT_TRUE(one.is_closed()) << line;
  }
}

TEST_F(ConnectionServerTest, SaysWhatIsWrongWithALargeHead) {
  start();
  const auto field = [](std::size_t n) { return "X: " + std::string(n, 'a') + "\r\n"; };
  Client one = client();
  for (const std::string& headers : {field(9000), field(60'000), field(9000) + field(9000)}) {
    one.get("/hello", headers);
    EXPECT_TRUE(has(one.hear(kHello), "200 OK")) << headers.size();
  }
  std::string many;
  for (int i = 0; i < 98; ++i) many += "X: a\r\n";
  one.get("/hello", many + "Y: b\r\n");
  EXPECT_TRUE(has(one.hear(kHello), "200 OK"));
  for (const std::string& headers :
       {field(kLargestHead), field(40'000) + field(40'000), many + many, field(10 * kLargestHead)}) {
    Client large = client();
    large.get("/hello", headers);
    const std::string heard = large.hear(kRefused);
    EXPECT_TRUE(has(heard, "HTTP/1.1 431 ") && has(heard, "Connection: close") && has(heard, kRefused))
        << heard;
    EXPECT_TRUE(large.is_closed());
  }
  Client long_path = client();
  long_path.get("/" + std::string(9000, 'a'));
  EXPECT_TRUE(has(long_path.hear(kRefused), "HTTP/1.1 414 "));
}

TEST_F(ConnectionServerTest, ClosesAfterAnErrorThatSaysSo) {
  start();
  Client one = client();
  one.get("/nothing");
  EXPECT_NE(one.hear("\r\n\r\n").find("Connection: close"), std::string::npos);
  EXPECT_TRUE(one.is_closed());
}

TEST_F(ConnectionServerTest, AnswersRequestsThatAreSentAtOnceInTheirOrder) {
  start();
  Client one = client();
  std::string all;
  for (int i = 0; i < 20; ++i)
    all += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
  one.say(all);
  for (int i = 0; i < 20; ++i) {
    const std::string wanted = "[" + std::to_string(10 + i) + "]";
    EXPECT_NE(one.hear(wanted).find(wanted), std::string::npos) << i;
  }
}

TEST_F(ConnectionServerTest, ReadsBodiesHoweverTheyCome) {
  start();
  Client slow = client();
  for (const char* piece :
       {"POST /echo HT", "TP/1.1\r\nHost: x\r", "\nCONTENT-length: 9\r\n\r", "\nabc", "def", "ghi"}) {
    slow.say(piece);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_NE(slow.hear("]").find("[abcdefghi]"), std::string::npos);

  Client chunked = client();
  chunked.say("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  std::this_thread::sleep_for(20ms);
  chunked.say("2\r\nde\r\n0\r\n\r\n");
  EXPECT_NE(chunked.hear("]").find("[abcde]"), std::string::npos);
  chunked.say(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "Chunked\r\n\r\n7;a=b\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n");
  EXPECT_NE(chunked.hear("]").find("[\r\n0\r\n\r\n]"), std::string::npos);
  chunked.get("/hello");  // the connection still works after the chunked body
  EXPECT_NE(chunked.hear(kHello).find("200 OK"), std::string::npos);

  Client asks_first = client();
  asks_first.say("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_NE(asks_first.hear("\r\n\r\n").find("100 Continue"), std::string::npos);
  asks_first.say("abc");
  EXPECT_NE(asks_first.hear("]").find("[abc]"), std::string::npos);
}

// Bytes after a request that was not understood may come from an attacker, so the server must not serve them
// as a request.
TEST_F(ConnectionServerTest, ServesNothingAfterARequestThatWasNotUnderstood) {
  start();
  const std::string inner = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi";
  std::string many_fields;
  for (int i = 0; i < 110; ++i) many_fields += "X-" + std::to_string(i) + ": a\r\n";
  const std::string length = "Content-Length: " + std::to_string(inner.size()) + "\r\n";
  for (const std::string& head :
       {"POST /hello HTTP/1.1\r\nHost: x\r\n" + many_fields + length,
        "POST /hello HTTP/1.1\r\nHost: x\r\n" + length + "Content-Length: 1\r\n",
        std::string("POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n"),
        std::string("POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 0x10\r\n"),
        "POST /hello HTTP/1.1\r\nHost: x\r\nX: " + std::string(9000, 'a') + "\r\n" + length,
        "FOO /hello HTTP/1.1\r\nHost: x\r\n" + length, "GET /hello HTTP/9\r\nHost: x\r\n" + length}) {
    Client one = client();
    one.say(head + "\r\n" + inner);
    const std::string heard = one.hear("[hi]", 1500ms);
    EXPECT_EQ(heard.find("[hi]"), std::string::npos) << head.substr(0, 80);
    EXPECT_TRUE(one.is_closed()) << head.substr(0, 80);
  }
}

TEST_F(ConnectionServerTest, RefusesBodiesThatNeverComeAtOnce) {
  start({.workers = 2, .max_body = 1000});
  for (const char* head :
       {"Content-Length: 9999999999\r\n\r\n", "Content-Length: 9999999999\r\nExpect: 100-continue\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"}) {
    Client one = client();
    const auto begin = Clock::now();
    one.say(std::string("POST /echo HTTP/1.1\r\nHost: x\r\n") + head);
    EXPECT_NE(one.hear("\r\n\r\n").find(" 4"), std::string::npos) << head;
    EXPECT_LT(seconds_since(begin), 3) << head;
  }
}

TEST_F(ConnectionServerTest, RefusesBodiesThatAreTooLarge) {
  start({.workers = 2, .max_body = 1000});
  Client one = client();
  one.say("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + std::string(100000, 'x'));
  EXPECT_NE(one.hear("\r\n\r\n").find(" 413 "), std::string::npos);
}

// A thousand clients that are idle, or rarely send a byte, must not take the threads of other clients.
TEST_F(ConnectionServerTest, DelaysNobodyForAThousandIdleConnections) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &files);
  const int n = files.rlim_cur >= 2500 ? 1000 : static_cast<int>(files.rlim_cur) / 3;
  start({.workers = 2, .connections = 2000});
  std::vector<Client> idle;
  for (int i = 0; i < n; ++i) {
    idle.push_back(client());
    // This request never becomes complete.
    if (i % 4 == 0) idle.back().say("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
    if (i % 4 == 1) idle.back().say("GET /hello HT");
    if (i % 100 == 2) {
      idle.back().get("/hello");
      idle.back().hear(kHello);
    }
  }
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    Client one = client();
    one.get("/hello");
    EXPECT_NE(one.hear(kHello).find("200 OK"), std::string::npos);
    EXPECT_LT(seconds_since(begin), 1.0);
  }
  idle[4].say("cde");  // the three bytes complete the request
  EXPECT_NE(idle[4].hear("]").find("[abcde]"), std::string::npos);
}

TEST_F(ConnectionServerTest, KeepsNoLargeBodyForAnIdleClient) {
  start();
  constexpr std::int64_t kBody = 1 << 20;
  std::vector<Client> clients;
  const auto held = [] {
    const HeapBytes bytes = heap_bytes().value_or(HeapBytes{});
    return bytes.small_blocks + bytes.large_blocks;
  };
  const std::int64_t before = held();
  for (int i = 0; i < 16; ++i) {
    clients.push_back(client());
    clients.back().say("POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kBody) +
                       "\r\n\r\n");
    clients.back().say(std::string(kBody, 'x'));
    EXPECT_TRUE(has(clients.back().hear(kHello), "200 OK"));
    clients.back().get("/hello");  // the connection serves another request
    EXPECT_TRUE(has(clients.back().hear(kHello), "200 OK"));
  }
  EXPECT_LT(held() - before, 4 * kBody);
}

TEST_F(ConnectionServerTest, ClosesConnectionsThatAreIdleForLong) {
  start({.workers = 2, .keep_alive = 1s});
  Client one = client();
  one.get("/hello");
  one.hear(kHello);
  EXPECT_FALSE(one.is_closed(500ms));
  EXPECT_TRUE(one.is_closed(3s));
}

TEST_F(ConnectionServerTest, MakesRoomByClosingTheConnectionThatIsIdleLongest) {
  start({.workers = 2, .connections = 3});
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(client());
    clients.back().get("/hello");
    clients.back().hear(kHello);
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(clients[0].is_closed());
  for (int i = 1; i < 4; ++i) {
    clients[i].get("/hello");
    EXPECT_NE(clients[i].hear(kHello).find("200 OK"), std::string::npos) << i;
  }
}

constexpr const char* kWait = "POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";

TEST_F(ConnectionServerTest, NoticesAClientThatLeaves) {
  start();
  wait_seconds_ = 5;
  Client one = client();
  one.say(kWait);
  while (n_waiting_ == 0) std::this_thread::sleep_for(1ms);
  const auto begin = Clock::now();
  one.leave();
  while (!has_left_ && seconds_since(begin) < 5) std::this_thread::sleep_for(1ms);
  EXPECT_LT(seconds_since(begin), 1.0);
}

TEST_F(ConnectionServerTest, NoticesAClientThatLeavesBehindAnotherRequest) {
  start();
  wait_seconds_ = 5;
  Client one = client();
  one.say(std::string(kWait) + kWait);
  while (n_waiting_ == 0) std::this_thread::sleep_for(1ms);
  one.leave();
  const auto begin = Clock::now();
  while (!has_left_ && seconds_since(begin) < 5) std::this_thread::sleep_for(1ms);
  EXPECT_LT(seconds_since(begin), 1.0);
}

TEST_F(ConnectionServerTest, ServesEveryRequestOfABurstAtOnce) {
  constexpr int kClients = 12;
  start({.workers = kClients + 1});
  wait_seconds_ = 10;
  for (int burst = 0; burst < 3; ++burst) {
    n_waiting_ = 0;
    has_left_ = false;
    std::vector<Client> clients;
    for (int i = 0; i < kClients; ++i) clients.push_back(client());
    std::this_thread::sleep_for(50ms);  // all threads of the server wait for work
    for (const Client& each : clients) each.say(kWait);
    const auto begin = Clock::now();
    while (n_waiting_ < kClients && seconds_since(begin) < 5) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(n_waiting_, kClients) << "burst " << burst;
    // The handlers end when they see that the first client has left.
    clients.front().leave();
    for (std::size_t i = 1; i < clients.size(); ++i)
      EXPECT_NE(clients[i].hear(kHello).find(kHello), std::string::npos);
  }
}

// The client has sent all that it wants to send, and still reads.
TEST_F(ConnectionServerTest, TakesAClientThatOnlyStopsSendingForPresent) {
  start();
  wait_seconds_ = 0.8;  // long enough for the server to send two bytes of the response ahead
  for (const char* version : {"1.1", "1.0"}) {
    Client one = client();
    one.say(std::string("POST /wait HTTP/") + version + "\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    one.stop_sending();
    const std::string heard = one.hear(kHello);
    EXPECT_EQ(heard.find("HTTP/1.1 200 OK\r\n"), 0U) << heard;
    EXPECT_NE(heard.find(kHello), std::string::npos);
  }
  EXPECT_FALSE(has_left_);
}

TEST_F(ConnectionServerTest, TellsOfEachRequestOnce) {
  start();
  Client one = client();
  one.get("/hello", "X-Request-Id: from-a-proxy.1\r\n");
  EXPECT_NE(one.hear(kHello).find("x-request-id: from-a-proxy.1"), std::string::npos);
  one.get("/hello", "X-Request-Id: two words\r\n");
  EXPECT_NE(one.hear(kHello).find("x-request-id: req-"), std::string::npos);
  one.get("/nothing");
  EXPECT_TRUE(one.is_closed());
  stop();
  const std::vector<RequestRecord> all = records();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].id, "from-a-proxy.1");
  EXPECT_EQ(all[0].method, "GET");
  EXPECT_EQ(all[0].path, "/hello");
  EXPECT_EQ(all[0].client, "127.0.0.1");
  EXPECT_EQ(all[0].status, 200);
  EXPECT_EQ(all[2].status, 404);
}

TEST_F(ConnectionServerTest, EndsWithAllItsConnections) {
  start();
  std::vector<Client> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(client());
  clients[0].say(
      // The body of this request never comes.
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  clients[1].say("GET /he");
  std::this_thread::sleep_for(50ms);
  const auto begin = Clock::now();
  stop();
  EXPECT_LT(seconds_since(begin), 3.0);
  for (Client& each : clients) EXPECT_TRUE(each.is_closed());
}

}  // namespace connection_server_test
}  // namespace kvant
