#include "serve/request_queue.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

Job job(std::int64_t id, const std::string& client) {
  Job job;
  job.id = id;
  job.request.client = client;
  return job;
}

std::vector<std::int64_t> order(RequestQueue& queue) {
  std::vector<std::int64_t> ids;
  while (!queue.empty()) {
    const std::int64_t next = queue.front().id;
    ids.push_back(queue.pop().id);
    EXPECT_EQ(ids.back(), next);
  }
  return ids;
}

TEST(RequestQueue, GoesRoundBetweenClients) {
  RequestQueue queue;
  for (const auto& [id, client] : {std::pair(1, "a"), {2, "a"}, {3, "a"}, {4, "b"}, {5, "c"}, {6, "b"}})
    queue.push(job(id, client));
  EXPECT_EQ(queue.size(), 6);
  EXPECT_EQ(order(queue), (std::vector<std::int64_t>{1, 4, 5, 2, 6, 3}));
}

TEST(RequestQueue, PutsAClientThatHasJustHadItsTurnLast) {
  RequestQueue queue;
  queue.push(job(1, "a"));
  queue.push(job(2, "b"));
  EXPECT_EQ(queue.pop().id, 1);
  queue.push(job(3, "a"));
  EXPECT_EQ(order(queue), (std::vector<std::int64_t>{2, 3}));
}

TEST(RequestQueue, ForgetsWhatIsRemoved) {
  RequestQueue queue;
  for (int id = 1; id <= 4; ++id) queue.push(job(id, id == 2 ? "b" : "a"));
  queue.remove_if([](const Job& j) { return j.id == 2 || j.id == 3; });
  EXPECT_EQ(queue.size(), 2);
  EXPECT_EQ(order(queue), (std::vector<std::int64_t>{1, 4}));
}

}  // namespace
}  // namespace kvant
