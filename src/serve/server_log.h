// ServerLog: the lines of a running server on the standard error stream, as text or as JSON.
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

// Thread-safe. A reader that does not keep up loses lines instead of holding up the server: a later line says
// how many.
class ServerLog {
 public:
  // descriptor: an open file, which outlives the log.
  explicit ServerLog(LogFormat format, int descriptor = 2) : format_(format), descriptor_(descriptor) {}
  ServerLog(const ServerLog&) = delete;
  ServerLog& operator=(const ServerLog&) = delete;

  void request(const RequestRecord& record);
  // One sentence about the server.
  void message(std::string_view sentence);
  // The same, the first time that it is said. Sentences beyond a limit are left out: clients bring them
  // about.
  void message_once(const std::string& sentence);

 private:
  void write(std::string line);

  LogFormat format_;
  int descriptor_;
  std::mutex mutex_;
  std::set<std::string> said_;
  std::int64_t lost_ = 0;
};

// A line of the log without its end, for tests; utc: "2026-11-28T17:50:00.123Z".
std::string log_line(LogFormat format, const std::string& utc, const RequestRecord& record);
std::string log_line(LogFormat format, const std::string& utc, std::string_view sentence);

}  // namespace kvant
