#include "calibrate/capture.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "calibrate/capture_state.h"

namespace kvant::capture_test {
namespace {

Geometry geometry() {
  Geometry g;
  g.model = "test";
  g.n_layers = 2;
  g.n_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = 16;
  g.sliding_window.assign(2, 0);
  return g;
}

// Returns a value that encodes its place and is exact in bfloat16.
float mark(int sequence, int token, int head) {
  return static_cast<float>(sequence * 16 + token + 64 * head);
}

void fill(Capture& capture, int first, int end) {
  const Geometry& g = capture.geometry();
  for (int sequence = first; sequence < end; ++sequence) {
    for (int token = 0; token < capture.length(sequence); ++token) {
      for (int layer = 0; layer < g.n_layers; ++layer) {
        for (int head = 0; head < g.n_heads; ++head) {
          const std::vector<float> values(g.head_dim, mark(sequence, token, head));
          capture.store_query(sequence, token, layer, head, values.data());
          if (head >= g.n_kv_heads) continue;
          for (const Side side : kSides) capture.store(sequence, token, layer, head, side, values.data());
        }
      }
    }
  }
}

// Returns, for each token of the samples, whether the capture keeps anything of it.
std::vector<bool> kept(const Capture& capture) {
  std::vector<bool> all;
  for (int sample = 0; sample < capture.size().samples; ++sample)
    for (int token = 0; token < capture.size().length; ++token) all.push_back(capture.keeps(sample, token));
  return all;
}

TEST(Capture, KeepsAsManyRowsAsAskedForEvenlySpread) {
  const Capture capture(geometry(), {.samples = 100, .length = 50, .rows = 1000, .passages = 2, .seed = 3});
  const std::vector<bool> all = kept(capture);
  EXPECT_EQ(std::count(all.begin(), all.end(), true), 1000);
  // The tolerance is five standard deviations.
  EXPECT_NEAR(std::count(all.begin(), all.begin() + 2500, true), 500, 75);
  EXPECT_EQ(capture.rows(0, 0, Side::key, false).size(), 1000U * 16);
}

TEST(Capture, TakesTheMemoryThatItSays) {
  CaptureSize size{.samples = 1000, .length = 50, .rows = 1000, .passages = 2};
  size.contexts = 3;
  size.context_length = 60;
  size.context_queries = 7;
  Capture capture(geometry(), size);
  std::int64_t bytes = 0;
  capture.for_each_block([&](const std::vector<std::uint16_t>& block) {
    bytes += static_cast<std::int64_t>(block.size() * sizeof(std::uint16_t));
  });
  EXPECT_EQ(bytes, capture_bytes(geometry(), size));
  size.samples *= 100;  // more text must take no more memory
  EXPECT_EQ(bytes, capture_bytes(geometry(), size));
}

TEST(Capture, OfALargeModelIsBounded) {
  Geometry g = geometry();
  g.n_layers = 80;
  g.n_heads = 64;
  g.n_kv_heads = 8;
  g.head_dim = 128;
  CaptureSize size{.samples = 64, .length = 512, .rows = 8192, .passages = 4};
  size.contexts = 14;
  size.context_length = 2048;
  size.context_queries = 64;
  constexpr std::int64_t kLimit = std::int64_t{3} << 30;
  ASSERT_GT(capture_bytes(g, size), kLimit);
  const CaptureSize fits = bounded(g, size, kLimit);
  EXPECT_LE(capture_bytes(g, fits), kLimit);
  EXPECT_GE(fits.contexts, 4);
  EXPECT_GE(fits.rows, 1024);
  EXPECT_EQ(bounded(geometry(), size, kLimit).rows, size.rows);
}

TEST(Capture, ChoosesByItsSeed) {
  const auto kept_for = [](std::uint64_t seed) {
    return kept(Capture(geometry(), {.samples = 10, .length = 16, .rows = 40, .seed = seed}));
  };
  EXPECT_EQ(kept_for(1), kept_for(1));
  EXPECT_NE(kept_for(1), kept_for(2));
}

TEST(Capture, GivesBackWhatWasStoredAndLeavesOutTheSink) {
  Capture capture(geometry(), {.samples = 3, .length = 8, .rows = 1000, .passages = 1});
  fill(capture, 0, 4);
  const std::vector<float> all = capture.rows(1, 1, Side::value, false);
  const std::vector<float> without = capture.rows(1, 1, Side::value, true);
  ASSERT_EQ(all.size(), 24U * 16);
  ASSERT_EQ(without.size(), 12U * 16);
  EXPECT_EQ(all[16 * 8], mark(1, 0, 1));
  EXPECT_EQ(without[0], mark(0, kSinkTokens, 1));
  EXPECT_EQ(without[16 * 4], mark(1, kSinkTokens, 1));
  EXPECT_EQ(capture.passage(0, 0, 0, Side::key)[16 * 7], mark(3, 7, 0));
  EXPECT_EQ(capture.passage_queries(0, 1, 3)[16 * 2], mark(3, 2, 3));
}

TEST(Capture, KeepsKeysAndSomeQueriesOfContexts) {
  CaptureSize size{.samples = 1, .length = 8, .rows = 8, .passages = 1};
  size.contexts = 2;
  size.context_length = 30;
  size.context_queries = 5;
  size.first_query = 10;
  Capture capture(geometry(), size);
  fill(capture, 0, capture.n_sequences());
  EXPECT_EQ(capture.context_keys(1, 0, 1)[16 * 29], mark(3, 29, 1));
  const auto tokens = capture.context_query_tokens(1);
  ASSERT_EQ(tokens.size(), 5U);
  EXPECT_GE(tokens.front(), 10);
  EXPECT_LT(tokens.back(), 30);
  const std::vector<float> queries = capture.context_queries(1, 1, 2);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(queries[16 * i], mark(3, tokens[i], 2));
}

// Each of the four octaves between 256 and 4096 must get a quarter of the queries. A context that has only as
// many tokens as queries uses all of them.
TEST(Capture, SpreadsTheQueriesOfContextsOverOctaves) {
  CaptureSize size{.samples = 1, .length = 8, .rows = 8, .contexts = 3, .context_length = 4096};
  size.context_queries = 128;
  size.first_query = 256;
  const Capture capture(geometry(), size);
  for (int c = 0; c < 3; ++c) {
    const auto tokens = capture.context_query_tokens(c);
    EXPECT_TRUE(std::ranges::is_sorted(tokens, std::less_equal<>())) << "each once";
    EXPECT_EQ(std::ranges::lower_bound(tokens, 512) - tokens.begin(), 32);
    EXPECT_EQ(std::ranges::lower_bound(tokens, 2048) - tokens.begin(), 96);
    EXPECT_LT(tokens.back(), 4096);
  }
  size.context_length = 256 + 128;
  const Capture short_contexts(geometry(), size);
  const auto all = short_contexts.context_query_tokens(0);
  EXPECT_EQ(all.front(), 256);
  EXPECT_EQ(all.back(), 256 + 127);
}

class CaptureState : public ::testing::Test {
 protected:
  const CaptureSize size_{.samples = 3, .length = 8, .rows = 10, .passages = 1, .seed = 1};
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("kvant_capture_" + std::to_string(getpid()) + ".gguf"))
          .string();
  void TearDown() override { std::filesystem::remove(path_); }
};

TEST_F(CaptureState, IsTakenUpWhereItWasLeft) {
  Capture whole(geometry(), size_);
  fill(whole, 0, 4);
  Capture half(geometry(), size_);
  fill(half, 0, 2);
  ASSERT_TRUE(write_capture(half, 42, 2, path_).ok());
  Capture again(geometry(), size_);
  ASSERT_EQ(read_capture(path_, 42, again).value(), 2);
  fill(again, 2, 4);
  for (const Side side : kSides) EXPECT_EQ(again.rows(1, 0, side, false), whole.rows(1, 0, side, false));
  EXPECT_EQ(again.passage_queries(0, 1, 2), whole.passage_queries(0, 1, 2));
}

TEST_F(CaptureState, IsNotTakenUpWhenItIsOfOtherWorkOrDamaged) {
  Capture capture(geometry(), size_);
  fill(capture, 0, 4);
  EXPECT_EQ(read_capture(path_, 42, capture).value(), 0);
  ASSERT_TRUE(write_capture(capture, 42, 2, path_).ok());
  EXPECT_FALSE(read_capture(path_, 43, capture).ok());
  CaptureSize other = size_;
  other.rows = 11;
  Capture larger(geometry(), other);
  EXPECT_FALSE(read_capture(path_, 42, larger).ok());
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.put('x');
  file.close();
  EXPECT_FALSE(read_capture(path_, 42, capture).ok());
}

}  // namespace
}  // namespace kvant::capture_test
