#include "serve/server_log.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostSaid = 1000;  // message_once() remembers at most this many sentences
// When poll() reports a pipe as writable, the pipe takes this many bytes without blocking (PIPE_BUF).
constexpr std::size_t kLongestLine = 4096;

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, milliseconds % 1000);
}

// Escapes control characters. A client chooses its request's path, and must not be able to start a new log
// line with a newline.
std::string printable(std::string_view text) {
  std::string printed;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      printed += fmt::format("\\x{:02x}", byte);
    } else {
      printed += c;
    }
  }
  return printed;
}

std::string as_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double rounded(double seconds) {
  return std::round(seconds * 1000) / 1000;
}

}  // namespace

std::string log_line(LogFormat format, const std::string& utc, const RequestRecord& record) {
  if (format == LogFormat::json) {
    Json json = {{"time", utc},
                 {"event", "request"},
                 {"id", record.id},
                 {"client", record.client},
                 {"method", record.method},
                 {"path", record.path},
                 {"status", record.status},
                 {"seconds", rounded(record.seconds)}};
    if (!record.model.empty()) {
      json["model"] = record.model;
      json["prompt_tokens"] = record.prompt_tokens;
      json["cached_tokens"] = record.cached_tokens;
      json["generated_tokens"] = record.generated_tokens ? Json(*record.generated_tokens) : Json(nullptr);
      json["first_token_seconds"] =
          record.first_token_seconds ? Json(rounded(*record.first_token_seconds)) : Json(nullptr);
    }
    if (!record.end.empty()) json["end"] = record.end;
    return as_line(json);
  }
  std::string line = fmt::format("{} {} {} {} {} {:.3f} s", utc, record.client, printable(record.method),
                                 printable(record.path), record.status, record.seconds);
  if (!record.model.empty()) {
    line += fmt::format(", {}: {} prompt tokens ({} cached)", printable(record.model), record.prompt_tokens,
                        record.cached_tokens);
    if (record.generated_tokens) line += fmt::format(", {} generated", *record.generated_tokens);
    if (record.first_token_seconds)
      line += fmt::format(", the first after {:.3f} s", *record.first_token_seconds);
  }
  if (!record.end.empty()) line += ", " + record.end;
  return line + ", " + record.id;
}

std::string log_line(LogFormat format, const std::string& utc, std::string_view sentence) {
  if (format == LogFormat::json) return as_line({{"time", utc}, {"event", "message"}, {"message", sentence}});
  return fmt::format("kvant: {}", printable(sentence));
}

void ServerLog::write(std::string line) {
  if (line.size() >= kLongestLine) line.resize(kLongestLine - 1);
  line += '\n';
  pollfd state{.fd = descriptor_, .events = POLLOUT, .revents = 0};
  if (poll(&state, 1, 0) <= 0 || (state.revents & POLLOUT) == 0) {
    ++lost_;
    return;
  }
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(descriptor_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

void ServerLog::request(const RequestRecord& record) {
  const std::string line = log_line(format_, utc_now(), record);
  const std::lock_guard lock(mutex_);
  if (lost_ > 0) {
    const std::int64_t before = lost_;
    write(log_line(format_, utc_now(),
                   fmt::format("{} lines of the log were lost, because nothing read them", lost_)));
    if (lost_ == before) lost_ = 0;
  }
  write(line);
}

void ServerLog::message(std::string_view sentence) {
  const std::string line = log_line(format_, utc_now(), sentence);
  const std::lock_guard lock(mutex_);
  write(line);
}

void ServerLog::message_once(const std::string& sentence) {
  {
    const std::lock_guard lock(mutex_);
    if (said_.size() >= kMostSaid || !said_.insert(sentence).second) return;
  }
  message(sentence);
}

}  // namespace kvant
