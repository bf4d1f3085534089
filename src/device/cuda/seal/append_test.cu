// Tests appending many rows at once to tail pages, as prefill does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/float16.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/page/page_layout.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/row_numbers.h"
#include "device/cuda/test/walsh_hadamard.h"
#include "kvant/kvant.h"

namespace kvant::cuda::append_test {
namespace {

constexpr int kKvHeads = 3;
constexpr int kTailPages = 4;                 // tail pages of each sequence
constexpr std::uint16_t kUntouched = 0x7ace;  // a number that no row contains

struct NewRow {
  int seq, token;  // -1 leaves the row out
};

// Returns consecutive rows of prompts of several lengths, which follow tails of several lengths. Three groups
// of rows follow that form no prompts: tokens in reverse order, every other token, and rows of which some are
// left out. The last rows are a prompt again.
std::vector<NewRow> rows_of_prompts() {
  struct Prompt {
    int first_token, n_tokens;
  };
  constexpr Prompt kPrompts[] = {{5, 300}, {0, 17},   {127, 1}, {16, 111},
                                 {3, 14},  {120, 16}, {0, 512}, {250, 40}};
  std::vector<NewRow> rows;
  int seq = 0;
  for (const Prompt& prompt : kPrompts) {
    for (int i = 0; i < prompt.n_tokens; ++i) rows.push_back({seq, prompt.first_token + i});
    ++seq;
  }
  for (int token = 63; token >= 0; --token) rows.push_back({seq, token});
  ++seq;
  for (int token = 0; token < 96; token += 2) rows.push_back({seq, token});
  ++seq;
  for (int token = 0; token < 64; ++token)
    rows.push_back(token % 16 == 7 ? NewRow{-1, token} : NewRow{seq, token});
  for (int token = 64; token < 80; ++token) rows.push_back({seq, -1});
  ++seq;
  for (int token = 112; token < 140; ++token) rows.push_back({seq, token});
  return rows;
}

// The parameters are the head size, the type of rows, whether keys are transformed, and whether rows have
// fewer channels than the head size.
class AppendingPrompts : public ::testing::TestWithParam<std::tuple<int, kvant_type, bool, bool>> {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  }
};

// Computes the transformed row in double precision, which is the row times the head's factors and then times
// the Walsh-Hadamard matrix.
std::vector<double> transformed(const float* row, const float* factors, int d, bool is_rotated) {
  std::vector<double> scaled(row, row + d);
  for (int c = 0; c < d && factors != nullptr; ++c) scaled[c] *= factors[c];
  return is_rotated ? rotated(scaled, d) : scaled;
}

TEST_P(AppendingPrompts, WritesEachRowWhereItsTokenLies) {
  const auto [d, type, rotated, is_short] = GetParam();
  const int channels = is_short ? d * 5 / 8 : d;  // number of channels in the rows
  const std::vector<NewRow> rows = rows_of_prompts();
  const int n_rows = static_cast<int>(rows.size()), row_stride = kKvHeads * d;
  std::vector<std::int32_t> seqs, tokens;
  int n_seqs = 0;
  for (const NewRow& row : rows) {
    seqs.push_back(row.seq);
    tokens.push_back(row.token);
    n_seqs = std::max(n_seqs, row.seq + 1);
  }
  std::mt19937 random(7 + d);
  std::normal_distribution<float> normal;
  std::vector<float> values[2], factors(static_cast<std::size_t>(kKvHeads) * d);
  for (float& factor : factors) factor = 0.5F + std::fabs(normal(random));
  for (auto& of_side : values) {
    of_side.resize(static_cast<std::size_t>(n_rows) * row_stride);
    for (std::size_t i = 0; i < of_side.size(); ++i) {
      const float x = float_from_bf16(bf16_from_float(normal(random)));
      of_side[i] = static_cast<int>(i % d) < channels ? rounded_to(type, x) : 0;
    }
  }
  const DeviceArray<std::uint8_t> keys(as_bytes(first_channels(values[0], d, channels), type)),
      device_values(as_bytes(first_channels(values[1], d, channels), type));
  const DeviceArray<std::int32_t> seq(seqs), token(tokens);
  const DeviceArray<float> key_factors(factors);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n_seqs) * kTailPages);  // all heads and sides
  std::iota(ids.rbegin(), ids.rend(), 0);
  const DeviceArray<std::int32_t> table(ids);
  const std::int64_t page = kPageTokens * d;
  const DeviceArray<std::uint16_t> tail(
      std::vector<std::uint16_t>(ids.size() * kKvHeads * 2 * page, kUntouched));
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = n_seqs;
  shape.n_kv_heads = kKvHeads;
  shape.group = 1;
  shape.head_dim = d;
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.tail = {table.get(), kTailPages,   0,       0, 0, tail.get(), kKvHeads * 2 * page * 2,
                0,           2 * page * 2, page * 2};
  kvant_new_rows new_rows{};
  new_rows.struct_size = sizeof new_rows;
  new_rows.n_rows = n_rows;
  new_rows.seq = seq.get();
  new_rows.tail_token = token.get();
  new_rows.type = type;
  new_rows.keys = keys.get();
  new_rows.values = device_values.get();
  new_rows.key_row_stride = new_rows.value_row_stride = std::int64_t{kKvHeads} * channels;
  new_rows.key_head_stride = new_rows.value_head_stride = channels;
  if (is_short) new_rows.key_channels = new_rows.value_channels = channels;
  new_rows.key_factors = rotated ? key_factors.get() : nullptr;
  new_rows.key_hadamard = rotated ? 1 : 0;
  ASSERT_EQ(kvant_append(&shape, &layer, &new_rows, nullptr), KVANT_OK);
  std::vector<std::uint16_t> stored = tail.read();

  double worst = 0;
  for (int i = 0; i < n_rows; ++i) {
    if (rows[i].seq < 0 || rows[i].token < 0) continue;
    const std::int64_t id = ids[rows[i].seq * kTailPages + rows[i].token / kPageTokens];
    for (int head = 0; head < kKvHeads; ++head)
      for (int side = 0; side < 2; ++side) {
        const bool is_key = side == static_cast<int>(PageSide::key);
        const std::vector<double> expected =
            transformed(values[side].data() + static_cast<std::ptrdiff_t>(i) * row_stride + head * d,
                        is_key && rotated ? factors.data() + head * d : nullptr, d, is_key && rotated);
        for (int c = 0; c < d; ++c) {
          std::uint16_t& number =
              stored[((id * kKvHeads + head) * 2 + side) * page +
                     plain_index(static_cast<PageSide>(side), d, rows[i].token % kPageTokens, c)];
          worst = std::max(
              worst, std::fabs(float_from_bf16(number) - expected[c]) / (std::fabs(expected[c]) + 0.01));
          number = kUntouched;
        }
      }
  }
  EXPECT_LE(worst, rotated ? 0.0045 : 0);  // bf16 rounds by up to 2^-8
  EXPECT_EQ(std::count(stored.begin(), stored.end(), kUntouched), static_cast<std::ptrdiff_t>(stored.size()));
}

INSTANTIATE_TEST_SUITE_P(All, AppendingPrompts,
                         ::testing::Combine(::testing::ValuesIn(kHeadDims),
                                            ::testing::Values(KVANT_BF16, KVANT_F32, KVANT_F16),
                                            ::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace kvant::cuda::append_test
