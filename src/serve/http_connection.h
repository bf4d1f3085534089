// HttpConnection: the connection of one client, from which cpp-httplib's server reads requests and to which
// it writes responses.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvant {

// What the head of a request may have: its request line, and all its fields.
inline constexpr std::size_t kLargestHead = 64 << 10;  // bytes
inline constexpr std::ptrdiff_t kMostFields = CPPHTTPLIB_HEADER_MAX_COUNT;

// One thread uses a connection at a time: the one that waits for all idle clients, or the one that serves its
// request.
class HttpConnection final : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  // Owns the socket. ending: whether the server ends, which stops every read; it outlives the connection.
  HttpConnection(int socket, const std::atomic<bool>& ending);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  const std::string& client() const { return client_; }  // its address
  int client_port() const { return client_port_; }

  // --- between two requests ---

  enum class Arrived : std::uint8_t {
    part,     // of a request, or nothing
    request,  // one that can be served without waiting for the client, or whose server has to wait itself
    end,      // the client sends no more
  };
  // Takes what has arrived, without waiting. A body of up to max_body bytes is gathered whole.
  Arrived gather(std::size_t max_body);
  // After a request was served: what has arrived beyond it begins the next one.
  void next_request();
  bool is_idle() const { return offset_ == buffer_.size() && !closing_; }
  // When the client is waited for no longer. keep_alive: for a next request.
  Clock::time_point deadline(Clock::duration keep_alive) const;
  Clock::time_point last_use() const { return last_use_; }
  std::size_t n_buffered() const { return buffer_.size() - offset_; }  // bytes

  // Ends the server's side. The client's bytes are thrown away for a moment: a socket that is closed with
  // bytes unread resets the connection, and the client may not get to read the response.
  void begin_closing();
  bool is_closing() const { return closing_; }

  // --- while a request is served ---

  // Whether the client is gone. A client that only stopped sending is not: when the end of its bytes has
  // come, the response is begun byte by byte ("HTTP/1.1 " is its beginning whatever it is), which makes the
  // system of a client that has closed its socket reset the connection.
  bool has_left();
  // Whether the end of the client's bytes has come: it may be gone, or wait for the response.
  bool has_stopped_sending() const;
  // Of the response's head, once it is written.
  int status() const { return status_; }
  bool said_close() const { return said_close_ || closes_after_; }
  // The status of the response to a head that nobody serves: it is larger than a head may be, its lines do
  // not end as HTTP's do, its method or its version of HTTP is not the server's, or the client begins with
  // TLS. 0: the head is none of these.
  int head_fault() const { return head_fault_; }
  // A chunk of the body says that it is larger than a body may be.
  bool is_too_large() const { return is_too_large_; }
  // The response is the last one, whatever its head says.
  void close_after_response() { closes_after_ = true; }

  // --- httplib::Stream ---
  bool is_readable() const override { return offset_ < buffer_.size(); }
  bool wait_readable() const override;
  bool wait_writable() const override;
  bool is_peer_alive() const override;
  ssize_t read(char* into, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  int socket() const override { return socket_; }
  time_t duration() const override;
  const char* buffered_data(std::size_t& size) const override;
  void consume_buffered(std::size_t size) override { offset_ += size; }

 private:
  bool receive(int flags);  // false: nothing came
  void skip_empty_lines();
  static int fault_of(std::string_view head);
  static int fault_of_line(std::string_view line);  // the request line
  bool is_whole(std::size_t max_body);
  bool has_last_chunk(std::size_t max_body);
  void read_head(const char* data, std::size_t size);  // of the response

  int socket_;
  const std::atomic<bool>& ending_;
  std::string client_;
  int client_port_ = 0;

  std::string buffer_;       // what has arrived
  std::size_t offset_ = 0;   // of it that has been read
  std::size_t scanned_ = 0;  // of it that holds no end of a head, or of a body in chunks
  std::size_t needed_ = 0;   // bytes of it that make a request, but for chunks; 0: not known yet
  bool chunked_ = false;     // its body comes in chunks
  int head_fault_ = 0;
  bool is_too_large_ = false;   // and one of these says that it is larger than bodies may be
  bool waits_ = false;          // the client, before it sends the body
  std::size_t n_received_ = 0;  // bytes of this request
  Clock::time_point begin_;     // of this request
  Clock::time_point last_use_ = Clock::now();
  bool client_ended_ = false;  // no more bytes come
  bool closing_ = false;
  Clock::time_point closing_since_;
  std::size_t n_discarded_ = 0;  // bytes, since then

  std::size_t sent_ahead_ = 0;   // bytes of the response's beginning
  Clock::time_point next_sign_;  // when the next of them is due
  Clock::duration sign_pause_{};
  bool head_written_ = false;
  int status_ = 0;
  bool said_close_ = false, closes_after_ = false;
};

}  // namespace kvant
