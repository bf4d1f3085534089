#include "serve/http_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

namespace kvant {
namespace {

using namespace std::chrono_literals;

constexpr auto kRequestTime = 30s;   // a request may take this long to arrive, plus
constexpr std::size_t kPace = 4096;  // one second for every kPace bytes
constexpr auto kWriteTime = 30s;     // a response may take this long to send, plus one second for every kPace
                                     // bytes
constexpr auto kClosingTime = 2s;
constexpr std::size_t kMostDiscarded = 32 << 20;  // bytes that are read and thrown away while a connection
                                                  // closes
constexpr std::size_t kLongestChunkLine = 4096;   // bytes; the line holds the chunk's size, and extensions
                                                  // that nobody reads
constexpr auto kLook = 100ms;                     // a waiting read checks this often whether the server ends
constexpr std::string_view kTlsHandshake = "\x16\x03";  // a client that speaks HTTPS begins with these bytes
constexpr std::string_view kBeginning = "HTTP/1.1 ";
// No path of the server accepts a method outside of this list, such as TRACE or CONNECT.
constexpr std::array<std::string_view, 7> kMethods = {"GET",   "HEAD",   "POST",   "PUT",
                                                      "PATCH", "DELETE", "OPTIONS"};

std::chrono::seconds time_for(std::chrono::seconds least, std::size_t n_bytes) {
  return least + std::chrono::seconds(n_bytes / kPace);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Returns the value of the first field called `name` in a head, or an empty string if there is none. `name`
// must be lowercase.
std::string_view field(std::string_view head, std::string_view name) {
  while (!head.empty()) {
    const std::size_t end = std::min(head.find('\n'), head.size());
    std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 1, head.size()));
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (!std::equal(name.begin(), name.end(), line.begin(), [](char a, char b) { return a == lower(b); }))
      continue;
    line.remove_prefix(name.size() + 1);
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
  }
  return {};
}

bool is_chunked(std::string_view transfer_encoding) {
  constexpr std::string_view kChunked = "chunked";
  return std::ranges::equal(transfer_encoding, kChunked, [](char a, char b) { return lower(a) == b; });
}

std::string address_of(const sockaddr_storage& address, int& port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    port = ntohs(v4.sin_port);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    port = ntohs(v6.sin6_port);
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

short state_of(int socket, short events) {
  pollfd state{.fd = socket, .events = events, .revents = 0};
  return poll(&state, 1, 0) > 0 ? state.revents : short{0};
}

}  // namespace

HttpConnection::HttpConnection(int socket, const std::atomic<bool>& ending)
    : socket_(socket), ending_(ending) {
  get_remote_ip_and_port(client_, client_port_);
  // Keep-alive probes find a client whose machine or network is gone, because that client never closes the
  // connection.
  const int on = 1, idle = 60, interval = 15, count = 4;
  setsockopt(socket_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket_, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(socket_, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(socket_, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

HttpConnection::~HttpConnection() {
  close(socket_);
}

bool HttpConnection::receive(int flags) {
  std::array<char, 16 << 10> block;
  ssize_t n = 0;
  do {
    n = ::recv(socket_, block.data(), block.size(), flags);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (n <= 0) {
    client_ended_ = true;
    return false;
  }
  last_use_ = Clock::now();
  if (n_received_ == 0) begin_ = last_use_;
  n_received_ += static_cast<std::size_t>(n);
  buffer_.append(block.data(), static_cast<std::size_t>(n));
  return true;
}

// Some clients send an empty line after a body. The line belongs neither to that body nor to the next request
// (RFC 9112, section 2.2).
void HttpConnection::skip_empty_lines() {
  const std::size_t n = std::min(buffer_.find_first_not_of("\r\n"), buffer_.size());
  const std::size_t end = buffer_.rfind('\n', n);
  if (end == std::string::npos) return;
  buffer_.erase(0, end + 1);
  scanned_ = 0;
  if (buffer_.empty()) n_received_ = 0;
}

int HttpConnection::fault_of(std::string_view head) {
  constexpr std::ptrdiff_t kOtherLines = 2;  // the request line and the empty line at the end
  if (head.starts_with(kTlsHandshake)) return httplib::StatusCode::BadRequest_400;
  if (head.size() > kLargestHead || std::ranges::count(head, '\n') > kMostFields + kOtherLines)
    return httplib::StatusCode::RequestHeaderFieldsTooLarge_431;
  // httplib reads on until CR LF. A line that ends with LF alone would therefore keep a thread waiting.
  for (std::size_t at = head.find('\n'); at != std::string_view::npos; at = head.find('\n', at + 1)) {
    if (at == 0 || head[at - 1] != '\r') return httplib::StatusCode::BadRequest_400;
  }
  return fault_of_line(head.substr(0, head.find("\r\n")));
}

// Returns an error status for a method or version that the server does not support, otherwise 0. For a line
// that is not a request line, httplib determines the status later. HTTP/2 without TLS begins with "PRI *
// HTTP/2.0".
int HttpConnection::fault_of_line(std::string_view line) {
  const std::size_t method_end = line.find(' '), target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || method_end == target_end) return 0;
  const std::string_view method = line.substr(0, method_end), version = line.substr(target_end + 1);
  if (!version.starts_with("HTTP/")) return 0;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return httplib::StatusCode::HttpVersionNotSupported_505;
  const bool is_known = std::ranges::find(kMethods, method) != kMethods.end();
  return is_known ? 0 : httplib::StatusCode::NotImplemented_501;
}

bool HttpConnection::is_whole(std::size_t max_body) {
  if (needed_ == 0) {
    std::size_t end = std::string::npos;
    for (std::size_t at = scanned_; (at = buffer_.find('\n', at)) != std::string::npos; ++at) {
      const std::string_view rest = std::string_view(buffer_).substr(at + 1);
      if (rest.starts_with("\r\n")) end = at + 3;
      if (rest.starts_with("\n")) end = at + 2;
      if (end != std::string::npos) break;
    }
    if (end == std::string::npos) {
      scanned_ = buffer_.size() - std::min<std::size_t>(buffer_.size(), 3);
      if (buffer_.size() > kLargestHead || buffer_.starts_with(kTlsHandshake))
        head_fault_ = fault_of(buffer_);
      return head_fault_ != 0;
    }
    const std::string_view head = std::string_view(buffer_).substr(0, end);
    head_fault_ = fault_of(head);
    if (head_fault_ != 0) return true;
    const std::string_view given = field(head, "content-length");
    std::size_t length = 0;
    const bool is_number =
        std::from_chars(given.data(), given.data() + given.size(), length).ec == std::errc();
    chunked_ = is_chunked(field(head, "transfer-encoding"));
    waits_ = !field(head, "expect").empty();
    needed_ = end + (is_number && length <= max_body && !waits_ && !chunked_ ? length : 0);
    scanned_ = end;
  }
  if (buffer_.size() < needed_) return false;
  // Some requests go to a worker before their body is complete. In one kind, the client waits for "100
  // Continue" before it sends the body. In the other, the body is larger than allowed, and the worker refuses
  // it.
  if (!chunked_ || waits_ || buffer_.size() - needed_ > max_body) return true;
  return has_last_chunk(max_body);
}

// Returns whether the chunked body is complete. A chunk with an invalid or too large size also gives true. A
// worker then refuses the request at once. scanned_ is the position where the next chunk begins.
bool HttpConnection::has_last_chunk(std::size_t max_body) {
  while (true) {
    const std::size_t end = buffer_.find("\r\n", scanned_);
    if (end == std::string::npos) return buffer_.size() - scanned_ > kLongestChunkLine;
    std::size_t size = 0;
    const char* const line = buffer_.data() + scanned_;
    const auto parsed = std::from_chars(line, buffer_.data() + end, size, 16);
    is_too_large_ = parsed.ec == std::errc::result_out_of_range || size > max_body;
    if (parsed.ec != std::errc() || is_too_large_) return true;
    if (size == 0) return buffer_.find("\r\n\r\n", end) != std::string::npos;
    const std::size_t next = end + 2 + size + 2;
    if (next > buffer_.size()) return false;
    scanned_ = next;
  }
}

HttpConnection::Arrived HttpConnection::gather(std::size_t max_body) {
  if (closing_) {
    buffer_.clear();
    while (receive(MSG_DONTWAIT)) {
      n_discarded_ += buffer_.size();
      buffer_.clear();
    }
    return client_ended_ || n_discarded_ > kMostDiscarded ? Arrived::end : Arrived::part;
  }
  do {
    if (needed_ == 0) skip_empty_lines();
    if (!buffer_.empty() && is_whole(max_body)) return Arrived::request;
  } while (receive(MSG_DONTWAIT));
  return client_ended_ ? Arrived::end : Arrived::part;
}

void HttpConnection::next_request() {
  buffer_.erase(0, offset_);
  // The client may now be idle for a long time, so the buffer must not stay as large as the largest request.
  if (buffer_.capacity() > kLargestHead) buffer_.shrink_to_fit();
  offset_ = scanned_ = needed_ = 0;
  chunked_ = waits_ = is_too_large_ = false;
  head_fault_ = 0;
  n_received_ = buffer_.size();
  begin_ = last_use_ = Clock::now();
  sent_ahead_ = 0;
  head_written_ = said_close_ = closes_after_ = false;
  status_ = 0;
}

HttpConnection::Clock::time_point HttpConnection::deadline(Clock::duration keep_alive) const {
  if (closing_) return closing_since_ + kClosingTime;
  if (is_idle()) return last_use_ + keep_alive;
  return begin_ + time_for(kRequestTime, n_received_);
}

void HttpConnection::begin_closing() {
  shutdown(socket_, SHUT_WR);
  closing_ = true;
  closing_since_ = Clock::now();
}

bool HttpConnection::has_stopped_sending() const {
  return client_ended_ || (state_of(socket_, POLLRDHUP) & POLLRDHUP) != 0;
}

bool HttpConnection::has_left() {
  if (!is_peer_alive()) return true;
  if (!has_stopped_sending() || head_written_ || sent_ahead_ == kBeginning.size()) return false;
  const Clock::time_point now = Clock::now();
  if (sent_ahead_ == 0) sign_pause_ = 500ms;
  if (sent_ahead_ > 0 && now < next_sign_) return false;
  if (::send(socket_, &kBeginning[sent_ahead_], 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return true;
  ++sent_ahead_;
  next_sign_ = now + sign_pause_;
  sign_pause_ *= 2;
  return false;
}

bool HttpConnection::is_peer_alive() const {
  return (state_of(socket_, POLLRDHUP) & (POLLERR | POLLHUP | POLLNVAL)) == 0;
}

bool HttpConnection::wait_readable() const {
  while (!ending_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        begin_ + time_for(kRequestTime, n_received_) - Clock::now());
    if (left <= 0ms) return false;
    pollfd state{.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&state, 1, static_cast<int>(std::min<std::chrono::milliseconds>(left, kLook).count())) > 0)
      return true;
  }
  return false;
}

bool HttpConnection::wait_writable() const {
  pollfd state{.fd = socket_, .events = POLLOUT, .revents = 0};
  const auto limit = std::chrono::milliseconds(kWriteTime);
  return poll(&state, 1, static_cast<int>(limit.count())) > 0 && (state.revents & (POLLERR | POLLHUP)) == 0;
}

ssize_t HttpConnection::read(char* into, std::size_t size) {
  while (!is_readable()) {
    if (client_ended_) return 0;
    if (!wait_readable()) {
      error_ = httplib::Error::Timeout;
      return -1;
    }
    buffer_.clear();
    offset_ = 0;
    receive(MSG_DONTWAIT);
  }
  const std::size_t n = std::min(size, buffer_.size() - offset_);
  std::memcpy(into, buffer_.data() + offset_, n);
  offset_ += n;
  return static_cast<ssize_t>(n);
}

void HttpConnection::read_head(const char* data, std::size_t size) {
  const std::string_view head =
      std::string_view(data, size).substr(0, std::string_view(data, size).find("\r\n\r\n"));
  if (head.starts_with("HTTP/1.1 1")) return;  // a status 1xx is not the final response
  head_written_ = true;
  if (head.starts_with(kBeginning))
    std::from_chars(head.data() + kBeginning.size(), head.data() + head.size(), status_);
  said_close_ = field(head, "connection") == "close";
}

ssize_t HttpConnection::write(const char* data, std::size_t size) {
  std::size_t done = 0;
  if (!head_written_) {
    read_head(data, size);
    if (head_written_) done = sent_ahead_;
  }
  const Clock::time_point end = Clock::now() + time_for(kWriteTime, size);
  while (done < size) {
    const ssize_t n = ::send(socket_, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || Clock::now() >= end || !wait_writable()) {
      error_ = httplib::Error::Write;
      return -1;
    }
  }
  last_use_ = Clock::now();
  return static_cast<ssize_t>(size);
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) ip = address_of(address, port);
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) ip = address_of(address, port);
}

time_t HttpConnection::duration() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_).count();
}

const char* HttpConnection::buffered_data(std::size_t& size) const {
  size = buffer_.size() - offset_;
  return size > 0 ? buffer_.data() + offset_ : nullptr;
}

}  // namespace kvant
