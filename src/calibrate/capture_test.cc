#include "calibrate/capture.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "calibrate/capture_state.h"

namespace kvant {
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

// A value that says where it belongs, exact in bfloat16.
float mark(int sequence, int token, int head) {
  return static_cast<float>(sequence * 16 + token + 64 * head);
}

void fill(Capture& capture, int first, int end) {
  const Geometry& g = capture.geometry();
  for (int sequence = first; sequence < end; ++sequence) {
    for (int token = 0; token < capture.size().length; ++token) {
      const int row = capture.row_of(sequence, token);
      if (row < 0) continue;
      for (int layer = 0; layer < g.n_layers; ++layer) {
        for (int head = 0; head < g.n_kv_heads; ++head) {
          const std::vector<float> values(g.head_dim, mark(sequence, token, head));
          for (const Side side : kSides) capture.store(sequence, layer, head, side, row, values.data());
        }
        if (!capture.is_passage(sequence)) continue;
        for (int head = 0; head < g.n_heads; ++head) {
          const std::vector<float> values(g.head_dim, mark(sequence, token, head));
          capture.store_query(layer, head, row, values.data());
        }
      }
    }
  }
}

TEST(Capture, KeepsAsManyRowsAsAskedForEvenlySpread) {
  const Capture capture(geometry(), {.samples = 100, .length = 50, .rows = 1000, .passages = 2, .seed = 3});
  int kept = 0;
  int in_first_half = 0;
  for (int sample = 0; sample < 100; ++sample)
    for (int token = 0; token < 50; ++token) {
      const int row = capture.row_of(sample, token);
      if (row < 0) continue;
      EXPECT_EQ(row, kept);
      ++kept;
      if (sample < 50) ++in_first_half;
    }
  EXPECT_EQ(kept, 1000);
  EXPECT_NEAR(in_first_half, 500, 75);  // five standard deviations
  EXPECT_EQ(capture.rows(0, 0, Side::key, false).size(), 1000U * 16);
}

TEST(Capture, TakesBoundedMemory) {
  const Geometry g = geometry();
  const CaptureSize size{.samples = 100000, .length = 50, .rows = 1000, .passages = 2};
  const std::int64_t kv_rows = 1000 + 2 * 50;
  EXPECT_EQ(Capture(g, size).bytes(),
            2 * 16 * g.n_layers * (kv_rows * 2 * g.n_kv_heads + 2 * 50 * g.n_heads));
}

TEST(Capture, ChoosesByItsSeed) {
  const auto rows_of = [](std::uint64_t seed) {
    const Capture capture(geometry(), {.samples = 10, .length = 16, .rows = 40, .seed = seed});
    std::vector<int> rows;
    for (int i = 0; i < 160; ++i) rows.push_back(capture.row_of(i / 16, i % 16));
    return rows;
  };
  EXPECT_EQ(rows_of(1), rows_of(1));
  EXPECT_NE(rows_of(1), rows_of(2));
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

class CaptureState : public testing::Test {
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
  ASSERT_EQ(read_capture(path_, 42, again), 2);
  fill(again, 2, 4);
  for (const Side side : kSides) EXPECT_EQ(again.rows(1, 0, side, false), whole.rows(1, 0, side, false));
  EXPECT_EQ(again.passage_queries(0, 1, 2), whole.passage_queries(0, 1, 2));
}

TEST_F(CaptureState, IsNotTakenUpWhenItIsOfOtherWorkOrDamaged) {
  Capture capture(geometry(), size_);
  fill(capture, 0, 4);
  EXPECT_EQ(read_capture(path_, 42, capture), 0);
  ASSERT_TRUE(write_capture(capture, 42, 2, path_).ok());
  EXPECT_EQ(read_capture(path_, 43, capture), 0);
  CaptureSize other = size_;
  other.rows = 11;
  Capture larger(geometry(), other);
  EXPECT_EQ(read_capture(path_, 42, larger), 0);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.put('x');
  file.close();
  EXPECT_EQ(read_capture(path_, 42, capture), 0);
}

}  // namespace
}  // namespace kvant
