// Compares attention to sequences without sealed pages with attention in double precision. Some calls also
// append rows. Every case runs the kernel for short sequences and, on equal caches, the general kernel.
#include <gtest/gtest.h>

#include "device/cuda/common/limits.h"
#include "device/cuda/decode/short_attention.h"
#include "device/cuda/test/decode_test_cache.h"
#include "kvant/kvant.h"

namespace kvant::cuda::short_attention_test {
namespace {

constexpr double kTolerance = 0.005;        // relative RMS error
constexpr double kPlainTolerance = 0.0005;  // relative RMS error with F32 queries

constexpr FormatPair kPairs[] = {{"bf16", "bf16"}, {"ch4g128", "tok4g128"}, {"tcq4", "tcq4"}};

// The lengths are near the ends of tiles, of pages, and of the tokens that a CTA's warps handle at a time.
const std::vector<SequenceLengths> kShort[] = {
    {{0, 23, 0}},
    {{0, 1, 0}, {0, 0, 0}, {0, 2, 0}, {0, 16, 0}, {0, 17, 0}},
    {{0, 33, 0}, {0, 128, 0}, {0, 129, 0}, {0, 130, 0}, {0, 144, 0}},
    {{0, 300, 0}, {0, 5, 0}, {0, 511, 0}, {0, 512, 0}},
    {{0, 1025, 0}, {0, 0, 0}, {0, 1100, 0}},
    {{0, 1024, 0}}};

class ShortAttention : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  // Runs both kernels. If the call gives limits of the sequences' lengths, the kernel for short sequences
  // runs.
  template <class Prepare>
  void expect_exact(const FormatPair& pair, const std::vector<SequenceLengths>& lengths, int group,
                    double tolerance, const Prepare& prepare, kvant_type out_type = KVANT_F32,
                    Tables tables = Tables::own) {
    const int d = GetParam();
    for (const bool says_lengths : {true, false}) {
      TestCache cache({pair}, d, lengths, 0, false, tables, Values::normal, 5);
      if (says_lengths) cache.say_lengths();
      prepare(cache);
      const double error = cache.worst_error(group, out_type);
      std::printf("  %s, d = %d, group %d, %zu sequences, %s: relative error %.5f\n", pair.key, d, group,
                  lengths.size(), says_lengths ? "short" : "general", error);
      EXPECT_LE(error, tolerance);
    }
  }
};

TEST_P(ShortAttention, Agrees) {
  for (const std::vector<SequenceLengths>& lengths : kShort)
    expect_exact(kPairs[0], lengths, 4, kTolerance, [](TestCache&) {});
}

TEST_P(ShortAttention, AgreesWhateverWouldBeSealed) {
  for (const FormatPair& pair : kPairs) expect_exact(pair, kShort[2], 4, kTolerance, [](TestCache&) {});
}

TEST_P(ShortAttention, AgreesOnGroupsOfAnySize) {
  for (const int group : {1, 2, 3, 5, 7, 8, 9, 12, 16})
    expect_exact(kPairs[0], kShort[2], group, kPlainTolerance,
                 [](TestCache& cache) { cache.use_queries(KVANT_F32); });
}

TEST_P(ShortAttention, AgreesOnBf16OutputsAndSharedTables) {
  expect_exact(
      kPairs[1], kShort[2], 4, kTolerance, [](TestCache&) {}, KVANT_BF16, Tables::shared);
}

TEST_P(ShortAttention, AgreesWithWindowsCapsAndSinkLogits) {
  for (const int group : {4, 12}) {
    for (const float cap : {0.0F, 1.5F}) {
      expect_exact(kPairs[0], {{0, 133, 0}, {0, 128, 0}, {0, 300, 0}, {0, 9, 0}}, group, kTolerance,
                   [&](TestCache& cache) {
                     cache.hide({127, 100, 17, 0});
                     cache.add_sink_logits();
                     cache.cap_scores(cap);
                   });
    }
  }
}

TEST_P(ShortAttention, RotatesOutputsBack) {
  for (const int group : {4, 7, 12}) {
    expect_exact(kPairs[1], kShort[2], group, kPlainTolerance, [](TestCache& cache) {
      cache.use_queries(KVANT_F32);
      cache.rotate_outputs();
    });
  }
}

TEST_P(ShortAttention, AppendsLastTokens) {
  for (const std::vector<SequenceLengths>& lengths : kShort)
    expect_exact(kPairs[0], lengths, 4, kPlainTolerance, [](TestCache& cache) {
      cache.use_queries(KVANT_F32);
      cache.append_last(KVANT_F32, /*rotated=*/false);
    });
}

TEST_P(ShortAttention, AppendsRotatedTokens) {
  for (const int group : {1, 4, 7, 12}) {
    expect_exact(kPairs[1], kShort[2], group, kPlainTolerance, [](TestCache& cache) {
      cache.use_queries(KVANT_F32);
      cache.append_last(KVANT_F32, /*rotated=*/true);
      cache.rotate_outputs();
    });
  }
}

TEST_P(ShortAttention, AppendsBf16Rows) {
  expect_exact(kPairs[0], kShort[1], 4, kTolerance,
               [](TestCache& cache) { cache.append_last(KVANT_BF16, /*rotated=*/false); });
}

TEST_P(ShortAttention, AppendsF16RowsAndStoresF16Outputs) {
  expect_exact(
      kPairs[0], kShort[1], 4, 2 * kPlainTolerance,
      [](TestCache& cache) {
        cache.use_queries(KVANT_F16);
        cache.append_last(KVANT_F16, /*rotated=*/false);
      },
      KVANT_F16);
}

TEST_P(ShortAttention, ServesRowsOfFewerChannels) {
  const int d = GetParam();
  for (const int channels : {d * 3 / 4, d * 5 / 8})
    expect_exact(kPairs[1], kShort[2], 4, kPlainTolerance, [&](TestCache& cache) {
      cache.use_queries(KVANT_F32);
      cache.keep_channels(channels);
      cache.rotate_outputs();
    });
}

TEST_P(ShortAttention, AppendsBeforeWindowsEnd) {
  expect_exact(kPairs[0], {{0, 133, 0}, {0, 128, 0}, {0, 300, 0}, {0, 9, 0}}, 4, kTolerance,
               [](TestCache& cache) {
                 cache.hide({127, 100, 17, 8});
                 cache.append_last(KVANT_F32, /*rotated=*/false);
               });
}

INSTANTIATE_TEST_SUITE_P(HeadDims, ShortAttention, ::testing::Values(64, 128, 256),
                         [](const auto& info) { return "d" + std::to_string(info.param); });

// Sequences with many sealed pages go to the general kernel, after another kernel has appended the last rows.
// A sequence without a tail appends nothing, and only its queries are rotated.
TEST(AppendingAttention, AgreesWhereSomeIsSealed) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const int d : kHeadDims) {
    for (const bool rotated : {false, true}) {
      TestCache cache({{"ch4g128", "tok4g128"}}, d, {{40, 133, 0}, {2, 9, 0}, {0, 20, 0}, {1, 0, 0}}, 0,
                      false, Tables::own, Values::normal, 5);
      cache.use_queries(KVANT_F32);
      cache.append_last(KVANT_F32, rotated);
      EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance) << d << rotated;
    }
  }
}

TEST(TakesShortKernel, WhereNothingElseIsThere) {
  const std::int32_t some[1] = {};
  const kvant_decode_shape shape{sizeof shape, 1, 8, 4, 128, 1.0F, "tcq4", "tcq4"};
  kvant_decode_lengths lengths{};
  lengths.tail_tokens = some;
  // Without a limit, sequences may have any length.
  EXPECT_FALSE(takes_short_kernel(shape, lengths, kH100, false));
  lengths.max_tail_tokens = 300;
  EXPECT_TRUE(takes_short_kernel(shape, lengths, kH100, false));
  const auto with = [&](const auto& change) {
    kvant_decode_shape changed_shape = shape;
    kvant_decode_lengths changed = lengths;
    change(changed_shape, changed);
    return takes_short_kernel(changed_shape, changed, kH100, false);
  };
  EXPECT_FALSE(with([](auto& s, auto&) { s.head_dim = 512; }));
  // The kernel for short sequences must not run, because the limit of sealed pages is missing.
  EXPECT_FALSE(with([&](auto&, auto& l) { l.sealed_pages = some; }));
  EXPECT_FALSE(with([&](auto&, auto& l) { l.protected_tokens = some; }));
  const auto with_tokens = [&](int n_seqs, int max_tail_tokens) {
    return with([&](auto& s, auto& l) {
      s.n_seqs = n_seqs;
      l.max_tail_tokens = max_tail_tokens;
    });
  };
  // Each of 8 heads has a cluster of 8 CTAs.
  EXPECT_TRUE(with_tokens(1, 2048));
  EXPECT_FALSE(with_tokens(1, 2049));
  // Each head has a cluster of 4 CTAs.
  EXPECT_TRUE(with_tokens(4, 1024));
  EXPECT_FALSE(with_tokens(4, 1025));
  // Each head has a cluster of 2 CTAs.
  EXPECT_TRUE(with_tokens(8, 512));
  EXPECT_FALSE(with_tokens(8, 513));
  // Each head has one CTA.
  EXPECT_TRUE(with_tokens(16, 512));
  EXPECT_FALSE(with_tokens(16, 513));
  EXPECT_FALSE(with([&](auto& s, auto&) { s.sas = 1; }));
  EXPECT_FALSE(with([&](auto& s, auto&) { s.corrected = 1; }));
  // The GPU has fewer SMs than the step has sequences and heads.
  EXPECT_FALSE(with_tokens(64, 300));
}

TEST(NewRows, AreRefusedWhereTheyDoNotFit) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const DeviceArray<std::uint8_t> memory(std::vector<std::uint8_t>(1 << 20));
  auto* numbers = reinterpret_cast<std::int32_t*>(memory.get());
  kvant_decode_shape shape{sizeof shape, 2, 1, 1, 128, 1.0F, "bf16", "bf16"};
  std::size_t bytes = 0;
  ASSERT_EQ(kvant_decode_workspace(&shape, &bytes), KVANT_OK);
  const DeviceArray<std::uint8_t> workspace(bytes);
  const auto refusal = [&](const auto& change) {
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.tail_tokens = numbers;
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = 2;
    rows.keys = rows.values = memory.get();
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.tail = {numbers, 0, 0, 0, 0, memory.get(), 0, 0, 0, 0};
    layer.q = layer.out = memory.get();
    layer.new_rows = &rows;
    change(lengths, layer, rows);
    EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, workspace.get(), bytes, nullptr),
              KVANT_INVALID_ARGUMENT);
    return std::string(kvant_last_error());
  };
  using Named = std::string::size_type;
  const Named none = std::string::npos;
  EXPECT_NE(refusal([](auto&, auto&, auto& rows) { rows.struct_size = 0; }).find("kvant_new_rows"), none);
  EXPECT_NE(refusal([](auto&, auto&, auto& rows) { rows.n_rows = 1; }).find("n_rows"), none);
  EXPECT_NE(refusal([](auto&, auto&, auto& rows) { rows.keys = nullptr; }).find("keys"), none);
  EXPECT_NE(refusal([](auto&, auto& layer, auto& rows) {
              rows.queries = const_cast<void*>(layer.q);
              rows.type = KVANT_F32;
            }).find("queries"),
            none);
  EXPECT_NE(refusal([](auto& lengths, auto&, auto&) { lengths.max_sealed_pages = -1; }).find("max_sealed"),
            none);
}

}  // namespace
}  // namespace kvant::cuda::short_attention_test
