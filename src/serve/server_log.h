// ServerLog writes a running server's log to stderr, as text or as JSON. A slow reader of the log must never
// delay a completion.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "serve/request_record.h"

namespace kvant {

enum class LogFormat : std::uint8_t { text, json };

// ServerLog is thread-safe. If the reader of the log is too slow, lines are lost, because the log must not
// delay the server. A later line gives the number of lost lines.
class ServerLog {
 public:
  // `descriptor` is an open file, which must outlive the log.
  explicit ServerLog(LogFormat format, int descriptor = 2) : format_(format), descriptor_(descriptor) {}
  ServerLog(const ServerLog&) = delete;
  ServerLog& operator=(const ServerLog&) = delete;

  void request(const RequestRecord& record);
  // Writes one sentence about the server.
  void message(std::string_view sentence);
  // Writes a sentence only the first time. Clients can cause any number of different sentences, so new
  // sentences are dropped beyond a limit.
  void message_once(const std::string& sentence);

 private:
  void write(std::string line);

  LogFormat format_;
  int descriptor_;
  std::mutex mutex_;
  std::set<std::string> said_;
  std::int64_t lost_ = 0;
};

// Returns a line of the log without its newline. `utc` has the form "2026-11-28T17:50:00.123Z". Outside of
// the log, only tests call log_line().
std::string log_line(LogFormat format, const std::string& utc, const RequestRecord& record);
std::string log_line(LogFormat format, const std::string& utc, std::string_view sentence);

}  // namespace kvant
