// HttpConnection is the connection of one client. cpp-httplib's server reads requests from it and writes
// responses to it. Between two requests, the waiting thread gathers bytes without blocking.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvant {

// The head of a request may have this many bytes and this many fields.
inline constexpr std::size_t kLargestHead = 64 << 10;  // bytes, including the request line
inline constexpr std::ptrdiff_t kMostFields = CPPHTTPLIB_HEADER_MAX_COUNT;

// Only one thread uses a connection at a time: the waiting thread while no request is complete, or the worker
// that serves the request.
class HttpConnection final : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  // Owns the socket. `ending` becomes true when the server ends, which stops every read. `ending` must
  // outlive the connection.
  HttpConnection(int socket, const std::atomic<bool>& ending);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  const std::string& client() const { return client_; }
  int client_port() const { return client_port_; }

  // The waiting thread calls the functions from gather() to is_closing(), between two requests.

  enum class Arrived : std::uint8_t {
    part,     // nothing, or only a part of a request, has arrived
    request,  // a worker can take the request; it may still have to wait for the body
    end,      // the client sends no more
  };
  // Reads the bytes that have arrived, without waiting. Bodies of up to max_body bytes are gathered
  // completely.
  Arrived gather(std::size_t max_body);
  // Prepares for the next request after one was served. Bytes that arrived after the served request belong to
  // the next request.
  void next_request();
  bool is_idle() const { return offset_ == buffer_.size() && !closing_; }
  // Returns the time at which the server stops waiting for the client. keep_alive applies to an idle
  // connection.
  Clock::time_point deadline(Clock::duration keep_alive) const;
  Clock::time_point last_use() const { return last_use_; }
  std::size_t n_buffered() const { return buffer_.size() - offset_; }  // bytes

  // Closes the server's side. For a moment, the connection goes on reading and throws the bytes away. If a
  // socket is closed with unread bytes, the connection is reset and the client may lose the response.
  void begin_closing();
  bool is_closing() const { return closing_; }

  // The worker that serves a request calls the functions from has_left() to close_after_response().

  // Returns whether the client is gone. A client that only stopped sending is still there. Once the client
  // has stopped sending, the function sends the response's first bytes, "HTTP/1.1 ", one at a time. If the
  // client has closed its socket, the byte makes the client's system reset the connection.
  bool has_left();
  // Returns whether the client has stopped sending. The client may be gone, or may wait for the response.
  bool has_stopped_sending() const;
  // status() and said_close() describe the response's head, once the head is written.
  int status() const { return status_; }
  bool said_close() const { return said_close_ || closes_after_; }
  // Returns the status for a head that no worker serves, or 0. Nobody serves a head that is too large, has
  // lines without CR LF, has an unknown method or HTTP version, or begins with TLS.
  int head_fault() const { return head_fault_; }
  // Returns whether a chunk of the body announces more bytes than a body may have.
  bool is_too_large() const { return is_too_large_; }
  // Makes the current response the connection's last one, whatever the response's head says.
  void close_after_response() { closes_after_ = true; }

  // The functions from is_readable() to consume_buffered() implement httplib::Stream.
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
  bool receive(int flags);  // returns false if no byte came
  void skip_empty_lines();
  static int fault_of(std::string_view head);
  static int fault_of_line(std::string_view line);  // `line` is the request line
  bool is_whole(std::size_t max_body);
  bool has_last_chunk(std::size_t max_body);
  void read_head(const char* data, std::size_t size);  // reads the response's head

  int socket_;
  const std::atomic<bool>& ending_;
  std::string client_;
  int client_port_ = 0;

  std::string buffer_;       // the bytes that have arrived
  std::size_t offset_ = 0;   // the first offset_ bytes of buffer_ have been read
  std::size_t scanned_ = 0;  // the first scanned_ bytes of buffer_ contain neither the end of a head nor the
                             // end of a chunked body
  std::size_t needed_ =
      0;  // bytes that must arrive before a worker takes the request, without chunks; 0 if unknown
  bool chunked_ = false;  // the body comes in chunks
  int head_fault_ = 0;
  bool is_too_large_ = false;   // a chunk announces more bytes than a body may have
  bool waits_ = false;          // the client waits for "100 Continue" before it sends the body
  std::size_t n_received_ = 0;  // bytes of the current request
  Clock::time_point begin_;     // the current request began at this time
  Clock::time_point last_use_ = Clock::now();
  bool client_ended_ = false;  // the client sends no more bytes
  bool closing_ = false;
  Clock::time_point closing_since_;
  std::size_t n_discarded_ = 0;  // bytes since closing_since_

  std::size_t sent_ahead_ = 0;   // bytes of the response that has_left() has already sent
  Clock::time_point next_sign_;  // the time when has_left() sends the next byte
  Clock::duration sign_pause_{};
  bool head_written_ = false;
  int status_ = 0;
  bool said_close_ = false, closes_after_ = false;
};

}  // namespace kvant
