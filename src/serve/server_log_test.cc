#include "serve/server_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

namespace kvant {
namespace server_log_test {

RequestRecord completion() {
  return {.id = "req-1",
          .client = "10.0.0.7",
          .method = "POST",
          .path = "/v1/completions",
          .status = 200,
          .seconds = 1.25,
          .model = "smol",
          .prompt_tokens = 30,
          .cached_tokens = 8,
          .generated_tokens = 12,
          .first_token_seconds = 0.5,
          .end = "length"};
}

TEST(ServerLog, WritesARequestAsOneObjectOfJson) {
  const std::string line = log_line(LogFormat::json, "2026-11-28T17:50:00.000Z", completion());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(line), nlohmann::json::parse(R"({"time": "2026-11-28T17:50:00.000Z",
      "event": "request", "id": "req-1", "client": "10.0.0.7", "method": "POST", "path": "/v1/completions",
      "status": 200, "seconds": 1.25, "model": "smol", "prompt_tokens": 30, "cached_tokens": 8,
      "generated_tokens": 12, "first_token_seconds": 0.5, "end": "length"})"));
}

TEST(ServerLog, WritesARequestAsALineOfText) {
  EXPECT_EQ(log_line(LogFormat::text, "2026-11-28T17:50:00.000Z", completion()),
            "2026-11-28T17:50:00.000Z 10.0.0.7 POST /v1/completions 200 1.250 s, smol: 30 prompt tokens (8 "
            "cached), "
            "12 generated, the first after 0.500 s, length, req-1");
}

TEST(ServerLog, LetsNoPathBeginALineOfItsOwn) {
  RequestRecord record{.id = "a", .client = "b", .method = "GET", .path = "/x\nkvant: forged", .status = 404};
  EXPECT_EQ(log_line(LogFormat::text, "t", record).find('\n'), std::string::npos);
  EXPECT_EQ(log_line(LogFormat::json, "t", record).find('\n'), std::string::npos);
  record.path = "/\xff";
  EXPECT_TRUE(nlohmann::json::accept(log_line(LogFormat::json, "t", record)));
}

// Pipe holds the two ends of a pipe.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends.data(), O_NONBLOCK), 0); }
  ~Pipe() {
    for (const int end : ends) close(end);
  }
  std::string read_all() const {
    std::string text;
    std::array<char, 4096> block;
    for (ssize_t n = 0; (n = read(ends[0], block.data(), block.size())) > 0;) text.append(block.data(), n);
    return text;
  }
  std::array<int, 2> ends{};
};

TEST(ServerLog, SaysAHintOnce) {
  const Pipe pipe;
  ServerLog log(LogFormat::text, pipe.ends[1]);
  log.message_once("'metadata' is left aside");
  log.message_once("'metadata' is left aside");
  log.message_once("'store' is left aside");
  EXPECT_EQ(pipe.read_all(), "kvant: 'metadata' is left aside\nkvant: 'store' is left aside\n");
}

TEST(ServerLog, LosesLinesRatherThanWaitForAReader) {
  const Pipe pipe;
  ServerLog log(LogFormat::text, pipe.ends[1]);
  for (int i = 0; i < 2000; ++i) log.request(completion());
  EXPECT_LT(pipe.read_all().size(), std::size_t{1} << 20);
  log.request(completion());
  const std::string later = pipe.read_all();
  EXPECT_NE(later.find(" lines of the log were lost"), std::string::npos) << later;
  EXPECT_NE(later.find("req-1"), std::string::npos) << later;
}

}  // namespace server_log_test
}  // namespace kvant
