// Compares the decode kernels with attention in double precision over the values that page bytes represent.
// Cases cover pairs of formats, every single format, mixes of formats over heads, SAS and skipped values. The
// last tests check kernel names and refusals.
#include <gtest/gtest.h>

#include "device/cuda/common/limits.h"
#include "device/cuda/page/page_format.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/format_pairs.h"
#include "device/cuda/test/kernel_path.h"
#include "kvant/kvant.h"

namespace kvant::cuda::decode_attention_test {
namespace {

constexpr double kTolerance = 0.005;  // relative RMS error
// The tolerance holds for unquantized tokens and F32 queries, which have 11 bits in products. Weights have 16
// bits.
constexpr double kPlainTolerance = 0.0005;
// The factors give keys and values of about 1e3, 1e4 and 5e4, all below 65504, the largest half-precision
// number.
constexpr float kLoud[] = {170, 1700, 10000};

class DecodeAttention : public ::testing::TestWithParam<std::tuple<FormatPair, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  void expect_exact(const std::vector<SequenceLengths>& lengths, int sink, bool masks, int group,
                    kvant_type out_type = KVANT_F32, Tables tables = Tables::own,
                    Values values = Values::normal) {
    const auto& [pair, d] = GetParam();
    TestCache cache({pair}, d, lengths, sink, masks, tables, values, 5);
    const double error = cache.worst_error(group, out_type);
    std::printf("  %s + %s, d = %d, group %d: relative error %.5f\n", pair.key, pair.value, d, group, error);
    EXPECT_LE(error, kTolerance);
  }
};

TEST_P(DecodeAttention, AgreesOnOneSealedPage) {
  if (is_unquantized(std::get<0>(GetParam()))) GTEST_SKIP() << "has no sealed pages";
  expect_exact({{1, 0, 0}}, 0, false, 4);
}
TEST_P(DecodeAttention, AgreesOnTheTailAlone) {
  expect_exact({{0, 1, 0}, {0, 17, 0}, {0, 128, 0}, {0, 300, 0}}, 0, false, 4);
}
TEST_P(DecodeAttention, AgreesOnRaggedSequencesWithSinkAndTail) {
  const bool plain = is_unquantized(std::get<0>(GetParam()));
  std::vector<SequenceLengths> lengths = {{1, 5, 4}, {9, 127, 4},  {0, 0, 0},
                                          {0, 3, 0}, {40, 200, 4}, {130, 33, 4}};
  if (plain)
    for (SequenceLengths& l : lengths) l = {0, l.tail + 128 * (l.sealed % 30), l.n_protected};
  for (const int group : {1, 4, 7}) expect_exact(lengths, plain ? 0 : 4, false, group);
}
TEST_P(DecodeAttention, AgreesWithProtectedTokensMasked) {
  if (is_unquantized(std::get<0>(GetParam()))) GTEST_SKIP() << "has no sealed pages";
  expect_exact({{33, 64, 130}, {600, 1, 7}}, 4, true, 8, KVANT_BF16);
}

TEST_P(DecodeAttention, AgreesWhereHeadsShareTheirTables) {
  const bool plain = is_unquantized(std::get<0>(GetParam()));
  expect_exact({{plain ? 0 : 11, 130, 9}, {plain ? 0 : 3, 2, 0}}, 0, false, 2, KVANT_F32, Tables::shared);
}

// Some sequences lie within one CTA's range, and some lie across several ranges. Windows begin in sealed
// pages and in the tail.
TEST_P(DecodeAttention, AgreesWithWindowsCapsAndSinkLogits) {
  const auto& [pair, d] = GetParam();
  const bool plain = is_unquantized(pair);
  for (const bool capped : {false, true}) {
    for (const int group : {4, 12}) {
      TestCache cache({pair}, d,
                      {{plain ? 0 : 1, plain ? 133 : 5, 0},
                       {0, 128, 0},
                       {0, 300, 0},
                       {plain ? 0 : 20, 133, 0},
                       {0, 9, 0}},
                      0, false, Tables::own, Values::normal, 5);
      cache.hide({127, 100, 17, 64, 0});
      cache.add_sink_logits();
      if (capped) cache.cap_scores(1.5F);
      const double error = cache.worst_error(group, KVANT_F32);
      std::printf("  %s + %s, d = %d, group %d: relative error %.5f\n", pair.key, pair.value, d, group,
                  error);
      EXPECT_LE(error, kTolerance);
    }
  }
}

// Some sequences lie within one CTA's range, and some lie across several ranges.
TEST_P(DecodeAttention, RotatesOutputsBackAndReadsF32Queries) {
  const auto& [pair, d] = GetParam();
  const bool plain = is_unquantized(pair);
  for (const int group : {4, 7, 12}) {
    TestCache cache({pair}, d, {{plain ? 0 : 40, 133, 0}, {plain ? 0 : 2, 9, 0}, {0, 20, 0}}, 0, false,
                    Tables::own, Values::normal, 5);
    cache.use_queries(KVANT_F32);
    cache.rotate_outputs();
    const double error = cache.worst_error(group, KVANT_F32);
    std::printf("  %s + %s, d = %d, group %d: relative error %.5f\n", pair.key, pair.value, d, group, error);
    EXPECT_LE(error, plain ? kPlainTolerance : kTolerance);
  }
}

TEST_P(DecodeAttention, ReadsAndWritesF16) {
  const auto& [pair, d] = GetParam();
  const bool plain = is_unquantized(pair);
  TestCache cache({pair}, d, {{plain ? 0 : 40, 133, 0}, {plain ? 0 : 2, 9, 0}, {0, 20, 0}}, 0, false,
                  Tables::own, Values::normal, 5);
  cache.use_queries(KVANT_F16);
  // The tolerance is higher because outputs are rounded to 11 bits.
  EXPECT_LE(cache.worst_error(4, KVANT_F16), plain ? 2 * kPlainTolerance : kTolerance);
}

// Heads have 80, 96 and 192 channels, among others, in pages of 128 and 256.
TEST_P(DecodeAttention, ServesRowsOfFewerChannels) {
  const auto& [pair, d] = GetParam();
  const bool plain = is_unquantized(pair);
  for (const int channels : {d * 3 / 4, d * 5 / 8}) {
    for (const kvant_type type : {KVANT_BF16, KVANT_F32}) {
      TestCache cache({pair}, d, {{plain ? 0 : 40, 133, 0}, {plain ? 0 : 2, 9, 0}, {0, 20, 0}}, 0, false,
                      Tables::own, Values::normal, 5);
      cache.use_queries(type);
      cache.keep_channels(channels);
      if (type == KVANT_F32) cache.rotate_outputs();
      EXPECT_LE(cache.worst_error(4, type), kTolerance) << channels;
    }
  }
}

TEST_P(DecodeAttention, AgreesOnOutliers) {
  const bool plain = is_unquantized(std::get<0>(GetParam()));
  expect_exact({{plain ? 0 : 20, 140, 5}}, plain ? 0 : 5, false, 4, KVANT_F32, Tables::own, Values::outliers);
}

// Values are so large that the products of weights with scales or gains would overflow in half precision.
TEST_P(DecodeAttention, AgreesOnLoudValues) {
  const auto& [pair, d] = GetParam();
  const bool plain = is_unquantized(pair);
  for (const float loudness : kLoud) {
    TestCache cache({pair}, d, {{plain ? 0 : 20, 40, 5}, {plain ? 0 : 3, 0, 0}}, 0, false, Tables::own,
                    loudness == kLoud[0] ? Values::outliers : Values::normal, 5, loudness);
    const double error = cache.worst_error(3, KVANT_F32);
    std::printf("  %s + %s, d = %d, %g times as loud: relative error %.5f\n", pair.key, pair.value, d,
                loudness, error);
    EXPECT_LE(error, kTolerance);
  }
}

TEST_P(DecodeAttention, AgreesOnWhatAModelMade) {
  if (std::get<1>(GetParam()) > kCapturedChannels) GTEST_SKIP() << "the model's heads are smaller";
  const bool plain = is_unquantized(std::get<0>(GetParam()));
  expect_exact({{plain ? 0 : 20, 140, 5}, {plain ? 0 : 3, 100, 0}}, 0, false, 3, KVANT_F32, Tables::own,
               Values::captured);
}

TEST_P(DecodeAttention, AgreesOnGroupsOfMoreThanEightHeads) {
  const bool plain = is_unquantized(std::get<0>(GetParam()));
  for (const int group : {9, 16})
    expect_exact({{plain ? 0 : 9, 127, 4}, {0, 3, 0}, {plain ? 0 : 30, 20, 4}}, plain ? 0 : 4, false, group);
}

INSTANTIATE_TEST_SUITE_P(Formats, DecodeAttention, ::testing::ValuesIn(pairs_by_head_dim()),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

// Each test uses one of the formats that kernels read, on both sides.
class EveryFormat : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(EveryFormat, AgreesOnBothSides) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [name, d] = GetParam();
  TestCache cache({{name.c_str(), name.c_str()}}, d, {{1, 5, 4}, {9, 127, 4}, {0, 3, 0}, {40, 0, 4}}, 4, true,
                  Tables::own, Values::outliers, 7);
  const double error = cache.worst_error(4, KVANT_F32);
  std::printf("  %s, d = %d: relative error %.5f\n", name.c_str(), d, error);
  EXPECT_LE(error, kTolerance);
}

TEST_P(EveryFormat, AgreesOnLoudValues) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [name, d] = GetParam();
  TestCache cache({{name.c_str(), name.c_str()}}, d, {{9, 27, 4}, {2, 0, 0}}, 4, true, Tables::own,
                  Values::normal, 7, kLoud[2]);
  const double error = cache.worst_error(4, KVANT_F32);
  std::printf("  %s, d = %d: relative error %.5f\n", name.c_str(), d, error);
  EXPECT_LE(error, kTolerance);
}

// There are more sequences and heads than CTAs, so ranges hold several sequences. A sequence has from less
// than a page to more pages than a CTA has warps.
TEST(ManySequences, AgreeWhereCtasServeSeveral) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  std::vector<SequenceLengths> lengths;
  for (int i = 0; i < 100; ++i)
    lengths.push_back({i % 25 == 0 ? 14 : i % 4, i % 3 == 0 ? i : 0, i % 7 == 0 ? 5 : 0});
  for (const int d : {64, 128}) {
    for (const char* format : {"lm3", "tcq4", "fp8"}) {
      TestCache cache({{format, format}}, d, lengths, 4, true, Tables::own, Values::normal, 5);
      for (const int group : {1, 6})
        EXPECT_LE(cache.worst_error(group, KVANT_F32), kTolerance) << format << ", " << d << ", " << group;
      cache.rotate_outputs();
      EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance) << format << ", " << d << ", rotated";
    }
  }
}

// All sequences are equally long, so ranges may be cut between sequences (best_cuts).
TEST(ManySequences, AgreeWhereNoneIsShared) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const int sealed : {2, 4}) {
    TestCache cache({{"lm3", "lm3"}}, 128, std::vector<SequenceLengths>(100, {sealed, 5, 0}), 4, true,
                    Tables::own, Values::normal, 5);
    for (const int group : {4, 12})
      EXPECT_LE(cache.worst_error(group, KVANT_F32), kTolerance) << sealed << ", " << group;
  }
}

// About forty or more CTAs of an H100 share the long sequence. The first cache has one launch for all heads,
// and the second has a launch for each head.
TEST(LongSequences, AgreeWhereManyCtasShareOne) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<std::vector<FormatPair>> of_heads = {
      {{"lm3", "lm3"}}, {{"lm3", "lm3"}, {"ch4g128", "tok4g128"}, {"fp8", "fp8"}}};
  for (const std::vector<FormatPair>& pairs : of_heads) {
    TestCache cache(pairs, 128, {{260, 140, 4}, {3, 0, 0}}, 4, true, Tables::own, Values::normal, 5);
    for (const int group : {4, 12})
      EXPECT_LE(cache.worst_error(group, KVANT_F32), kTolerance) << pairs[0].key << ", " << group;
    cache.ask(3);
    EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance) << pairs[0].key << ", several queries";
  }
}

// Ranges have equal costs (unit_cuts.h), so CTAs with protected pages have fewer units than other CTAs.
TEST(LongSequences, AgreeWhereManyPagesAreProtected) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  TestCache cache({{"ch4g128", "tok2g128"}}, 128, {{600, 140, 2500}, {40, 0, 300}}, 4, true, Tables::own,
                  Values::normal, 5);
  for (const int group : {4, 12}) EXPECT_LE(cache.worst_error(group, KVANT_F32), kTolerance) << group;
  cache.ask(3);
  EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance) << "several queries";
}

// BF16 numbers may exceed half precision by far, also in sealed pages.
TEST(SealedBf16, AgreesBeyondHalfPrecision) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const int d : kHeadDimsUpTo256) {
    for (const FormatPair& pair : {FormatPair{"bf16", "fp8"}, FormatPair{"prog4", "bf16"}}) {
      TestCache cache({pair}, d, {{9, 27, 4}, {2, 0, 0}}, 4, true, Tables::own, Values::normal, 7, 1e8F);
      EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance) << pair.key << " + " << pair.value << ", " << d;
    }
  }
}

std::vector<std::tuple<std::string, int>> every_format() {
  std::vector<std::tuple<std::string, int>> cases;
  PageFormat format;
  for (const int d : kHeadDims)
    for (const std::string& name : format_names())
      if (name != "bf16" && !(d > 256 && has_16_bits(name)) && find_page_format(name.c_str(), d, format))
        cases.emplace_back(name, d);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, ::testing::ValuesIn(every_format()), [](const auto& info) {
  std::string name = std::get<0>(info.param) + "_d" + std::to_string(std::get<1>(info.param));
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

struct Mix {
  const char* name;
  std::vector<FormatPair> pairs;
};
void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.name;
}

class HeadMix : public ::testing::TestWithParam<std::tuple<Mix, int>> {};

TEST_P(HeadMix, AgreesWhereHeadsHaveFormatsOfTheirOwn) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [mix, d] = GetParam();
  const std::vector<SequenceLengths> ragged = {{1, 5, 4}, {9, 127, 4}, {0, 0, 0}, {0, 3, 0}, {130, 33, 4}};
  for (const int group : {1, 4, 8, 12}) {
    for (const bool is_long : {false, true}) {
      TestCache cache(mix.pairs, d,
                      is_long ? std::vector<SequenceLengths>{{600, 1, 7}, {33, 64, 130}} : ragged, 4, is_long,
                      Tables::own, Values::normal, 6);
      const double error = cache.worst_error(group, KVANT_F32);
      std::printf("  %s, d = %d, group %d: relative error %.5f\n", mix.name, d, group, error);
      EXPECT_LE(error, kTolerance);
    }
  }
}

TEST_P(HeadMix, AgreesWherePagesTakeTheirOwnRoom) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [mix, d] = GetParam();
  for (const int group : {4, 12}) {
    TestCache cache(mix.pairs, d, {{9, 127, 4}, {0, 3, 0}, {2, 0, 0}, {330, 33, 4}}, 4, true, Tables::packed,
                    Values::normal, 6);
    const double error = cache.worst_error(group, KVANT_F32);
    std::printf("  %s, d = %d, group %d: relative error %.5f\n", mix.name, d, group, error);
    EXPECT_LE(error, kTolerance);
  }
}

// With announced lengths the launches on groups of heads run side by side, and trellis codes of unlike widths
// are one launch. The cases have short sequences, few CTAs for each head, many CTAs for one sequence, and
// ranges over many sequences.
TEST_P(HeadMix, AgreesWithAnnouncedLengths) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [mix, d] = GetParam();
  const std::vector<SequenceLengths> many(60, {5, 40, 4});
  const std::vector<std::vector<SequenceLengths>> cases = {
      {{3, 40, 4}, {2, 9, 4}}, {{65, 9, 4}, {1, 127, 4}, {0, 3, 0}, {33, 140, 4}}, {{600, 1, 7}}, many};
  for (const int group : {1, 6, 12}) {
    for (const std::vector<SequenceLengths>& lengths : cases) {
      TestCache cache(mix.pairs, d, lengths, 4, /*masks=*/false, Tables::own, Values::normal, 7);
      cache.say_lengths();
      const double error = cache.worst_error(group, KVANT_F32);
      std::printf("  %s, d = %d, group %d: relative error %.5f\n", mix.name, d, group, error);
      EXPECT_LE(error, kTolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mixes, HeadMix,
    ::testing::Combine(
        ::testing::Values(Mix{"turbo", {{"prog4", "prog4"}, {"prog2", "prog2"}}},
                          Mix{"three", {{"lm4", "lm4"}, {"ch4g128", "tok2g128"}, {"tcq3", "tcq2"}}},
                          Mix{"linear", {{"ch2g128", "tok2g128"}, {"ch4g128", "tok4g128"}}},
                          Mix{"trellis", {{"tcq1", "tcq3"}, {"tcq3", "tcq1"}, {"tcq2", "tcq2"}}},
                          Mix{"generic", {{"fp8", "lm5"}, {"prog4", "prog4"}, {"tcq2", "tok3g64"}}}),
        ::testing::ValuesIn(kHeadDims)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_d" + std::to_string(std::get<1>(info.param));
    });

class SasAttention : public ::testing::TestWithParam<std::tuple<Mix, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
};

// The kernel knows the largest score of a sealed page, or of 16 unquantized tokens, before it computes
// weights. With one page, the result of SAS therefore depends on the scores alone.
TEST_P(SasAttention, AgreesOnOnePageOfSharpScores) {
  const auto& [mix, d] = GetParam();
  for (const SequenceLengths& lengths : {SequenceLengths{1, 0, 0}, {0, 100, 0}}) {
    TestCache cache(mix.pairs, d, {lengths}, 0, false, Tables::own, Values::normal, 9);
    cache.sharpen(3);
    const double error = cache.worst_error(4, KVANT_F32, Softmax::sas, Softmax::sas);
    const double from_exact = cache.worst_error(4, KVANT_F32, Softmax::sas, Softmax::exact);
    std::printf("  %s, d = %d: relative error %.5f, from exact attention %.5f\n", mix.name, d, error,
                from_exact);
    EXPECT_LE(error, kTolerance);
    EXPECT_GE(from_exact, 2 * error);
  }
}

// Scores are flat, and none is 6 below the largest. With sharper scores, the result would depend on how many
// pages a warp has already handled.
TEST_P(SasAttention, AgreesOnManyPages) {
  const auto& [mix, d] = GetParam();
  TestCache cache(mix.pairs, d, {{9, 127, 4}, {0, 0, 0}, {130, 33, 4}}, 4, true, Tables::own, Values::normal,
                  6);
  cache.sharpen(0.25);
  for (const int group : {4, 12}) {
    const double error = cache.worst_error(group, KVANT_F32, Softmax::sas, Softmax::sas);
    std::printf("  %s, d = %d, group %d: relative error %.5f\n", mix.name, d, group, error);
    EXPECT_LE(error, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mixes, SasAttention,
    ::testing::Combine(::testing::Values(Mix{"prog4", {{"prog4", "prog4"}}},
                                         Mix{"turbo", {{"prog4", "prog4"}, {"prog2", "prog2"}}},
                                         Mix{"generic", {{"ch4g128", "tok4g128"}, {"tcq3", "tcq3"}}}),
                       ::testing::ValuesIn(kHeadDims)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_d" + std::to_string(std::get<1>(info.param));
    });

// The kernel skips a page's values if no lane's 16 tokens have weights that sum to more than 10^-4 of the
// largest weight so far. Skipping may change results only as much as rounding does.
TEST(SkippingAttention, AgreesWithReadingAllValues) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr double kInherent = 0.01;  // relative RMS error of the formats with scores this sharp
  for (const int group : {1, 4, 12}) {
    double errors[2];
    for (const bool skips : {false, true}) {
      TestCache cache({{"ch4g128", "tok4g128"}}, 128,
                      {{9, 127, 4}, {0, 0, 0}, {1, 0, 0}, {130, 33, 4}, {601, 5, 4}}, 4, true, Tables::own,
                      Values::normal, 6);
      cache.sharpen(kSharpest);
      cache.skip_below(skips ? 1e-4F : 1e-30F);
      errors[skips] = cache.worst_error(group, KVANT_F32);
      const std::vector<std::uint64_t> counts = cache.skip_counts();
      std::printf("  group %d: relative error %.5f, values of %d in %d pages skipped\n", group, errors[skips],
                  static_cast<int>(counts[1]), static_cast<int>(counts[0]));
      EXPECT_GT(counts[0], 0U);
      EXPECT_EQ(counts[1] > 0, skips);
    }
    EXPECT_LE(errors[0], kInherent);
    EXPECT_LE(errors[1], errors[0] + 0.002);
  }
}

TEST(SkippingAttention, AgreesOnLoudValues) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const float loudness : kLoud) {
    TestCache cache({{"ch4g128", "tok4g128"}}, 128, {{9, 27, 4}, {130, 3, 4}}, 4, true, Tables::own,
                    Values::outliers, 6, loudness);
    cache.skip_below(1e-30F);
    EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance) << loudness;
  }
}

TEST(SkippingAttention, FindsValuesThatTakeTheirOwnRoom) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  TestCache cache({{"ch4g128", "tok4g128"}, {"tcq3", "tcq1"}, {"ch4g128", "tok4g128"}}, 128,
                  {{9, 27, 4}, {130, 3, 4}}, 4, true, Tables::packed, Values::normal, 6);
  cache.skip_below(1e-30F);
  EXPECT_LE(cache.worst_error(4, KVANT_F32), kTolerance);
  EXPECT_GT(cache.skip_counts()[0], 0U);
}

TEST(DecodeApi, RefusesOffsetsThatAreNone) {
  const kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1, "ch4g128", "tok4g128"};
  std::size_t bytes = 0;
  if (kvant_decode_workspace(&shape, &bytes) != KVANT_OK) GTEST_SKIP() << "no GPU";
  alignas(256) static unsigned char not_touched[8 << 20];
  ASSERT_LE(bytes, sizeof not_touched);
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.q = layer.out = not_touched;
  for (const std::int64_t wrong : {std::int64_t{-16}, std::int64_t{8}, std::int64_t{1} << 36}) {
    const std::int64_t offsets[] = {0, wrong};
    layer.sealed_offsets = offsets;
    EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, not_touched, bytes, nullptr),
              KVANT_INVALID_ARGUMENT)
        << wrong;
    EXPECT_NE(std::string(kvant_last_error()).find("layer.sealed_offsets"), std::string::npos) << wrong;
  }
}

TEST(DecodeApi, ReadsFormatsByHead) {
  const char* names[] = {"prog4", "prog2", "prog4"};
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = shape.group = 1;
  shape.n_kv_heads = 3;
  shape.head_dim = 128;
  shape.head_key_formats = shape.head_value_formats = names;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "prog4+prog4");
  names[2] = "no such format";
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  names[2] = nullptr;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
}

TEST(DecodeApi, NamesTheGenericKernelWhereAPairHasNone) {
  const kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, "fp8", "lm3"};
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "generic:fp8+lm3");
  EXPECT_EQ(kvant_page_bytes("fp8", 128), 16896U);
}

TEST(DecodeApi, NamesTheGenericKernelWhereAPairsOwnCannotServe) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 16, 256, 1.0F, "prog5", "prog5"};
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "generic:prog5+prog5");
  shape.head_dim = 128;
  shape.key_format = shape.value_format = "prog4";
  shape.sas = 1;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "prog4+prog4 with SAS");
  shape.key_format = "tcq4";
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "generic:tcq4+prog4");
  shape.value_format = "tcq4";
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "generic:tcq4+tcq4");
  shape.sas = 0;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "tcq4+tcq4");
  shape.skip_threshold = 1e-6F;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "tcq4+tcq4");
  shape.key_format = "ch4g128";
  shape.value_format = "tok4g128";
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "ch4g128+tok4g128 skipping values");
}

TEST(DecodeApi, NamesKernelsOfWideHeads) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 2, 256, 1.0F};
  for (const int group : {2, 4, 8}) {
    for (const float cap : {0.0F, 50.0F}) {
      shape.group = group;
      shape.score_softcap = cap;
      shape.key_format = shape.value_format = "prog4";
      EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "prog4+prog4");
      shape.key_format = "ch4g128";
      shape.value_format = "tok4g128";
      EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "ch4g128+tok4g128");
      shape.key_format = "tcq4";
      shape.value_format = "tcq3";
      EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "tcq4+tcq3");
    }
  }
  shape.head_dim = 128;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "generic:tcq4+tcq3");
}

TEST(DecodeApi, NamesKernelsOfHeadsOf512AndRefusesWhatTheyLack) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 8, 512, 1.0F, "bf16", "bf16"};
  for (const float cap : {0.0F, 50.0F}) {
    shape.score_softcap = cap;
    shape.key_format = shape.value_format = "bf16";
    EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "bf16+bf16");
    shape.key_format = shape.value_format = "tcq4";
    EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "generic:tcq4+tcq4");
  }
  EXPECT_EQ(kvant_page_bytes("tcq4", 512), 33424U);
  shape.max_queries = 2;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_NE(std::string(kvant_last_error()).find("max_queries"), std::string::npos) << kvant_last_error();
  shape.max_queries = 1;
  shape.value_format = "f16";
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_NE(std::string(kvant_last_error()).find("shared memory"), std::string::npos) << kvant_last_error();
}

TEST(DecodeApi, RefusesWhatItCannotRun) {
  kvant_decode_shape shape{};
  std::size_t bytes = 0;
  EXPECT_EQ(kvant_decode_workspace(&shape, &bytes), KVANT_INVALID_ARGUMENT);
  shape = {sizeof shape, 1, 1, 1, 96, 1.0F, "ch4g128", "tok4g128"};
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  shape.head_dim = 128;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "ch4g128+tok4g128");
  shape.value_format = "no such format";
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  shape.value_format = "gear4-tok4g128";
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  shape.value_format = "tok4g128";
  shape.group = 17;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  shape.group = 16;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "ch4g128+tok4g128");
  shape.corrected = 1;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_EQ(kvant_page_bytes("ch4g128", 128), 8704U);
  EXPECT_EQ(kvant_page_bytes("prog4", 128), 8720U);
  EXPECT_EQ(kvant_page_bytes("no such format", 128), 0U);
}

}  // namespace
}  // namespace kvant::cuda::decode_attention_test
