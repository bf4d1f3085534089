#include "calibrate/checkpoint_constants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "calibrate/rope_turns.h"
#include "format/page_metric.h"

namespace kvant::checkpoint_constants_test {
namespace {

constexpr int kDim = 16, kTurned = 12;  // RoPE rotates 12 of 16 channels

std::uint64_t step_of(int pair) {
  return static_cast<std::uint64_t>(std::ldexp(std::pow(0.3, pair + 1), 64));
}

// in_halves() returns the layout of checkpoints, and in_pairs() returns the layout of GGUF files of the Llama
// family.
std::vector<ChannelTurn> in_halves() {
  std::vector<ChannelTurn> turns;
  for (int i = 0; i < kTurned / 2; ++i) turns.push_back({i, i + kTurned / 2, step_of(i)});
  return turns;
}
std::vector<ChannelTurn> in_pairs() {
  std::vector<ChannelTurn> turns;
  for (int i = 0; i < kTurned / 2; ++i) turns.push_back({2 * i, 2 * i + 1, step_of(i)});
  return turns;
}

// Returns the row in the checkpoint's order.
std::vector<float> row_of_checkpoint(const std::vector<float>& row) {
  std::vector<float> there = row;
  for (int i = 0; i < kTurned / 2; ++i) {
    there[i] = row[2 * i];
    there[i + kTurned / 2] = row[2 * i + 1];
  }
  return there;
}

std::vector<float> random_numbers(int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// Returns the products of a metric's directions with a row that RoPE has rotated by n_tokens positions.
std::vector<double> seen(std::vector<float> row, const std::vector<ChannelTurn>& turns, int n_tokens,
                         const std::vector<float>& constant) {
  turn_row(turns, n_tokens, row.data());
  std::vector<double> products(kMetricRank);
  for (int i = 0; i < kDim; ++i)
    for (int r = 0; r < kMetricRank; ++r)
      products[r] += double{row[i]} * constant[static_cast<std::size_t>(i) * kMetricRank + r];
  return products;
}

class CheckpointConstants : public ::testing::Test {
 protected:
  CheckpointConstants() {
    geometry_.model = "test";
    geometry_.n_layers = geometry_.n_heads = geometry_.n_kv_heads = 1;
    geometry_.head_dim = kDim;
    geometry_.sliding_window.assign(1, 0);
    made_.model = "LlamaForCausalLM";
    made_.fingerprint = "01234567-0123456789abcdef";
    made_.constants.set(0, 0, Side::key, "hadamard:page-metric", metric_);
    made_.constants.set(0, 0, Side::value, "hadamard:sensitivity/tcq1+tcq2", {2, 1});
  }

  Result<Calibration> for_model(std::vector<ChannelTurn> turns, bool balances_keys = false) {
    return for_gguf_model(made_, {"fedcba9876543210", geometry_, {std::move(turns)}, balances_keys}, "FILE");
  }
  std::string refusal(std::vector<ChannelTurn> turns, bool balances_keys = false) {
    const auto made = for_model(std::move(turns), balances_keys);
    return made.ok() ? "" : made.error().message;
  }

  Geometry geometry_;
  std::vector<float> metric_ = page_metric_constant(random_numbers(kDim * kMetricRank, 1), in_halves(), kDim);
  Calibration made_;
};

TEST_F(CheckpointConstants, SeeTheSameRowsInEitherOrderOfChannels) {
  ASSERT_TRUE(is_of_checkpoint(made_));
  const auto ours = for_model(in_pairs());
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  EXPECT_EQ(ours->fingerprint, "fedcba9876543210");
  EXPECT_FALSE(is_of_checkpoint(*ours));
  const auto found = ours->constants.find(0, 0, Side::key, "hadamard:page-metric");
  const std::vector<float> metric(found.begin(), found.end());
  EXPECT_EQ(metric.size(), page_metric_size(kDim));
  for (const int n_tokens : {0, 1, 700}) {
    const std::vector<float> row = random_numbers(kDim, n_tokens + 3);
    const auto here = seen(row, in_pairs(), n_tokens, metric),
               there = seen(row_of_checkpoint(row), in_halves(), n_tokens, metric_);
    for (int r = 0; r < kMetricRank; ++r) EXPECT_NEAR(here[r], there[r], 1e-4);
  }
  const PageMetric read = read_page_metric(metric, kDim);
  EXPECT_EQ(read.frames[0].partner, 1);
  EXPECT_EQ(read.frames[kTurned].partner, kTurned);
  const auto sensitivity = ours->constants.find(0, 0, Side::value, "hadamard:sensitivity/tcq1+tcq2");
  EXPECT_EQ(std::vector<float>(sensitivity.begin(), sensitivity.end()), (std::vector<float>{2, 1}));
}

TEST_F(CheckpointConstants, StayAsTheyAreWhereBothHaveOneOrder) {
  made_.constants.set(0, 0, Side::key, "smooth", random_numbers(kDim, 2));
  const auto ours = for_model(in_halves());
  ASSERT_TRUE(ours.ok());
  const auto found = ours->constants.find(0, 0, Side::key, "hadamard:page-metric");
  EXPECT_EQ(std::vector<float>(found.begin(), found.end()), metric_);
}

TEST_F(CheckpointConstants, AreRefusedWhereTheyDoNotFit) {
  EXPECT_NE(refusal(in_pairs(), true).find("balances norms"), std::string::npos);
  auto other = in_pairs();
  for (ChannelTurn& turn : other) turn.step /= 2;
  EXPECT_NE(refusal(other).find("RoPE rotates the channels of layer 0 differently"), std::string::npos);
  made_.constants.set(0, 0, Side::key, "smooth", random_numbers(kDim, 2));
  EXPECT_NE(refusal(in_pairs()).find("'smooth' may be of channels in another order"), std::string::npos);
  made_.constants.set(0, 1, Side::key, "smooth", random_numbers(kDim, 2));
  EXPECT_NE(refusal(in_pairs()).find("of 1 layers with 2 KV heads, and this model has 1 with 1"),
            std::string::npos);
}

}  // namespace
}  // namespace kvant::checkpoint_constants_test
