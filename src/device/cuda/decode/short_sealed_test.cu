// Compares the kernel for short sequences with sealed pages with attention in double precision. Both
// computations use the same page bytes.
#include <gtest/gtest.h>

#include "device/cuda/common/limits.h"
#include "device/cuda/decode/decode_registry.h"
#include "device/cuda/decode/short_attention.h"
#include "device/cuda/page/page_format.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/format_pairs.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::cuda::short_sealed_test {
namespace {

constexpr double kTolerance = 0.005;  // relative RMS error

using Lengths = std::vector<SequenceLengths>;

// Sequences have up to 4,096 tokens, and end anywhere in pages and tiles. Some sequences have nothing sealed,
// and some have no tokens.
const Lengths kOneOf4k = {{31, 128, 4}};
const Lengths kRagged = {{1, 5, 4}, {3, 127, 4}, {0, 3, 0}, {0, 0, 0}, {4, 0, 4}, {8, 200, 4}, {2, 17, 0}};
Lengths many_sequences(int n) {
  Lengths lengths;
  for (int i = 0; i < n; ++i) lengths.push_back({i % 5, 1 + i * 37 % 130, i % 5 > 0 ? 4 : 0});
  return lengths;
}

class ShortSealed : public ::testing::TestWithParam<std::tuple<FormatPair, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
    if (!gpu_or_h100().has.bulk_copies) GTEST_SKIP() << "the kernel is for Hopper GPUs";
  }
  template <class Prepare>
  void expect_exact(const Lengths& lengths, int group, const Prepare& prepare, int sink = 4,
                    bool masks = false, kvant_type out_type = KVANT_F32, Tables tables = Tables::own) {
    const auto& [pair, d] = GetParam();
    TestCache cache({pair}, d, lengths, sink, masks, tables, Values::normal, 5);
    cache.say_lengths();
    prepare(cache);
    const double error = cache.worst_error(group, out_type);
    EXPECT_TRUE(cache.was_short());
    std::printf("  %s + %s, d = %d, group %d, %zu sequences: relative error %.5f\n", pair.key, pair.value, d,
                group, lengths.size(), error);
    EXPECT_LE(error, kTolerance);
  }
};

constexpr auto kAsItIs = [](TestCache&) {};

TEST_P(ShortSealed, AgreesOnOnePage) {
  expect_exact({{1, 1, 0}}, 4, kAsItIs, 0);
}
TEST_P(ShortSealed, AgreesOnRaggedSequences) {
  for (const int group : {1, 4, 7, 12}) expect_exact(kRagged, group, kAsItIs);
}
TEST_P(ShortSealed, AgreesOnFourThousandTokens) {
  expect_exact(kOneOf4k, 4, kAsItIs);
}
TEST_P(ShortSealed, AgreesOnManySequences) {
  expect_exact(many_sequences(20), 4, kAsItIs);
}
TEST_P(ShortSealed, AgreesWherePagesAreUnsettled) {
  expect_exact(kRagged, 4, [](TestCache& cache) {
    cache.append_last(KVANT_BF16, /*rotated=*/false);
    cache.leave_unsettled();
  });
}
TEST_P(ShortSealed, AgreesWithProtectedTokensMasked) {
  expect_exact({{7, 64, 130}, {3, 1, 7}}, 8, kAsItIs, 4, /*masks=*/true, KVANT_BF16);
}
TEST_P(ShortSealed, AgreesWhereHeadsShareTheirTables) {
  expect_exact({{11, 130, 9}, {3, 2, 0}}, 2, kAsItIs, 0, false, KVANT_F32, Tables::shared);
}
TEST_P(ShortSealed, AgreesWithWindowsCapsAndSinkLogits) {
  for (const float cap : {0.0F, 1.5F}) {
    for (const int group : {4, 12}) {
      expect_exact(
          {{1, 5, 0}, {0, 128, 0}, {0, 300, 0}, {16, 133, 0}, {0, 9, 0}}, group,
          [&](TestCache& cache) {
            cache.hide({127, 100, 17, 64, 0});
            cache.add_sink_logits();
            cache.cap_scores(cap);
          },
          /*sink=*/0);
    }
  }
}
TEST_P(ShortSealed, AppendsRotatedTokensAndRotatesOutputsBack) {
  for (const int group : {1, 4, 7, 12}) {
    expect_exact(kRagged, group, [](TestCache& cache) {
      cache.use_queries(KVANT_F32);
      cache.append_last(KVANT_F32, /*rotated=*/true);
      cache.rotate_outputs();
    });
  }
}
TEST_P(ShortSealed, AppendsBf16Rows) {
  expect_exact({{8, 128, 4}, {1, 129, 4}, {3, 16, 4}}, 4,
               [](TestCache& cache) { cache.append_last(KVANT_BF16, /*rotated=*/false); });
}

TEST_P(ShortSealed, ReadsAndWritesF16RowsOfFewerChannels) {
  const int d = std::get<1>(GetParam());
  for (const int channels : {d, d * 3 / 4}) {
    expect_exact(
        {{8, 128, 4}, {1, 129, 4}, {3, 16, 4}}, 4,
        [&](TestCache& cache) {
          cache.use_queries(KVANT_F16);
          cache.keep_channels(channels);
        },
        4, false, KVANT_F16);
  }
}

// Tests clusters of each size with one pair of formats of each kind of kernel.
class ShortSealedClusters : public ShortSealed {
 protected:
  void expect_exact_groups(const Lengths& lengths, const std::vector<int>& groups) {
    const auto& [pair, d] = GetParam();
    TestCache cache({pair}, d, lengths, 4, false, Tables::own, Values::normal, 5);
    cache.say_lengths();
    cache.use_queries(KVANT_F32);
    cache.append_last(KVANT_F32, /*rotated=*/true);
    cache.add_sink_logits();
    cache.rotate_outputs();
    for (const int group : groups) {
      EXPECT_LE(cache.worst_error(group, KVANT_F32), kTolerance)
          << pair.key << " + " << pair.value << ", d = " << d << ", group " << group << ", "
          << lengths[0].sealed << " pages of " << lengths.size() << " sequences";
      EXPECT_TRUE(cache.was_short());
    }
  }
};

TEST_P(ShortSealedClusters, AgreeOnAllSizes) {
  // Sequences have one page for each CTA of a cluster, counting the tail. The largest clusters have two pages
  // for some CTAs.
  for (const int pages : {2, 3, 4, 5, 6, 7, 8, 13})
    expect_exact_groups({{pages - 1, 5, 4}, {1, 1, 4}}, {1, 2, 3, 4, 5, 6, 7, 8, 12, 16});
}
TEST_P(ShortSealedClusters, AgreeOnSequencesWithoutTokens) {
  expect_exact_groups({{5, 20, 4}, {0, 0, 0}, {0, 1, 0}}, {1, 4, 8});
}
TEST_P(ShortSealedClusters, AgreeWithoutClusters) {
  // There are so many sequences that each has one CTA for each KV head.
  expect_exact_groups(many_sequences(30), {1, 3, 4, 7, 8});
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ShortSealedClusters,
    ::testing::Combine(
        ::testing::ValuesIn(std::vector<FormatPair>{
            {"ch4g128", "tok4g128"}, {"tcq4", "tcq4"}, {"tcq3", "tcq2"}, {"lm3", "lm3"}, {"fp8", "fp8"}}),
        ::testing::ValuesIn(kHeadDimsUpTo256)),
    [](const auto& info) { return name_of(std::get<0>(info.param), std::get<1>(info.param)); });

// Tests steps that only kernels with shared pages serve.
class SharedPages : public ShortSealedClusters {};

TEST_P(SharedPages, AgreeOnManyPagesPerCta) {
  // The sequence has eight pages for each CTA of a cluster of 8 CTAs, so rings are filled several times.
  const bool is_wide = std::get<1>(GetParam()) == 256;
  expect_exact_groups({{64, 5, 4}}, is_wide ? std::vector{1, 4, 7, 8, 12} : std::vector{7, 8, 12});
}
TEST_P(SharedPages, AgreeInWaves) {
  if (std::get<1>(GetParam()) == 256) GTEST_SKIP() << "waves are for heads of 128";
  // There are more CTAs than SMs, and some sequences have no tokens.
  Lengths lengths = many_sequences(60);
  lengths[7] = lengths[58] = {0, 0, 0};
  expect_exact_groups(lengths, {7, 12});
}

INSTANTIATE_TEST_SUITE_P(Formats, SharedPages,
                         ::testing::Combine(::testing::ValuesIn(std::vector<FormatPair>{
                                                {"ch4g128", "tok4g128"}, {"tcq4", "tcq4"}, {"tcq3", "tcq2"}}),
                                            ::testing::Values(128, 256)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

std::vector<FormatPair> sealed_pairs() {
  std::vector<FormatPair> pairs;
  for (const FormatPair& pair : kPairs)
    if (!is_unquantized(pair)) pairs.push_back(pair);
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Formats, ShortSealed,
                         ::testing::Combine(::testing::ValuesIn(sealed_pairs()),
                                            ::testing::ValuesIn(kHeadDimsUpTo256)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

// Returns the names of all formats of sealed pages that kernels read.
std::vector<std::string> sealed_formats(int d) {
  std::vector<std::string> names;
  PageFormat format;
  for (const std::string& name : format_names())
    if (name != "bf16" && find_page_format(name.c_str(), d, format)) names.push_back(name);
  return names;
}

TEST(ShortSealedFormats, AgreeOnBothSides) {
  if (!have_gpu() || !gpu_or_h100().has.bulk_copies) GTEST_SKIP() << "no Hopper GPU";
  for (const int d : kHeadDimsUpTo256) {
    for (const std::string& name : sealed_formats(d)) {
      TestCache cache({{name.c_str(), name.c_str()}}, d, {{1, 5, 4}, {9, 127, 4}, {0, 3, 0}, {4, 0, 4}}, 4,
                      true, Tables::own, Values::outliers, 7);
      cache.say_lengths();
      const double error = cache.worst_error(4, KVANT_F32);
      EXPECT_TRUE(cache.was_short());
      std::printf("  %s, d = %d: relative error %.5f\n", name.c_str(), d, error);
      EXPECT_LE(error, kTolerance) << name << ", " << d;
    }
  }
}

TEST(ShortSealedFormats, MayDifferByHead) {
  if (!have_gpu() || !gpu_or_h100().has.bulk_copies) GTEST_SKIP() << "no Hopper GPU";
  const std::vector<FormatPair> mix = {{"lm4", "lm4"}, {"ch4g128", "tok2g128"}, {"tcq3", "tcq2"}};
  for (const int d : kHeadDimsUpTo256) {
    for (const int group : {4, 12}) {
      TestCache cache(mix, d, {{9, 127, 4}, {0, 3, 0}, {2, 1, 4}, {4, 33, 4}}, 4, true, Tables::packed,
                      Values::normal, 6);
      cache.say_lengths();
      cache.use_queries(KVANT_F32);
      cache.append_last(KVANT_F32, /*rotated=*/true);
      EXPECT_LE(cache.worst_error(group, KVANT_F32), kTolerance) << d << ", " << group;
      EXPECT_TRUE(cache.was_short());
    }
  }
}

// Steps without a schedule may have layers of any formats.
TEST(ShortSealedFormats, AllFitIntoSharedMemory) {
  for (const int d : kHeadDimsUpTo256) {
    for (const std::string& key : sealed_formats(d)) {
      for (const std::string& value : sealed_formats(d)) {
        for (const int group : {1, 8}) {
          const DecodeKernel* kernel =
              find_decode_kernel(kH100, key.c_str(), value.c_str(), d, group, false, false);
          ASSERT_NE(kernel, nullptr) << key << " + " << value << ", " << d;
          EXPECT_TRUE(fits_short(*kernel, kH100)) << key << " + " << value << ", " << d;
        }
      }
    }
  }
}

// Returns lengths of sequences with sealed pages and a tail of at most this many tokens.
kvant_decode_lengths sealed_lengths(int max_tail_tokens) {
  static constexpr std::int32_t kSome[1] = {};
  kvant_decode_lengths lengths{};
  lengths.sealed_pages = lengths.tail_tokens = kSome;
  lengths.max_tail_tokens = max_tail_tokens;
  return lengths;
}

TEST(TakesShortKernel, WhereFewPagesAreSealed) {
  const kvant_decode_shape shape{sizeof shape, 1, 8, 4, 128, 1.0F, "tcq4", "tcq4"};
  kvant_decode_lengths lengths = sealed_lengths(100);
  lengths.protected_tokens = lengths.sealed_pages;
  // Without a limit, sequences may have any length.
  EXPECT_FALSE(takes_short_kernel(shape, lengths, kH100, true));
  lengths.max_sealed_pages = 4;
  EXPECT_TRUE(takes_short_kernel(shape, lengths, kH100, true));
  const auto with = [&](const auto& change, const Gpu& gpu = kH100) {
    kvant_decode_shape changed_shape = shape;
    kvant_decode_lengths changed = lengths;
    change(changed_shape, changed);
    return takes_short_kernel(changed_shape, changed, gpu, true);
  };
  const auto with_pages = [&](int n_seqs, int max_sealed_pages) {
    return with([&](auto& s, auto& l) {
      s.n_seqs = n_seqs;
      l.max_sealed_pages = max_sealed_pages;
    });
  };
  EXPECT_TRUE(with_pages(1, 32));
  EXPECT_FALSE(with_pages(1, 33));
  EXPECT_TRUE(with_pages(4, 16));
  EXPECT_FALSE(with_pages(4, 17));
  EXPECT_TRUE(with_pages(16, 4));
  // On this GPU, only 7 clusters of 8 CTAs run at once, so each of 8 heads has a cluster of 7 CTAs.
  Gpu fewer = kH100;
  fewer.clusters[7] = 7;
  const auto with_fewer = [&](int max_sealed_pages) {
    return with([&](auto&, auto& l) { l.max_sealed_pages = max_sealed_pages; }, fewer);
  };
  EXPECT_TRUE(with_fewer(28));
  EXPECT_FALSE(with_fewer(29));
  // The GPU has fewer SMs than the step has sequences and heads.
  EXPECT_FALSE(with_pages(17, 4));
  EXPECT_FALSE(with([](auto&, auto& l) { l.max_tail_tokens = 0; }));
  EXPECT_TRUE(with([](auto&, auto& l) {
    l.tail_tokens = nullptr;
    l.max_tail_tokens = 0;
  }));
  EXPECT_FALSE(with([](auto& s, auto&) { s.skip_threshold = .01F; }));
  EXPECT_FALSE(with([](auto& s, auto&) { s.max_queries = 2; }));
  Gpu small = kH100;
  small.shared_bytes = 99 * 1024;
  EXPECT_FALSE(with([](auto&, auto&) {}, small));
  Gpu other = kH100;
  other.has = kCapabilities<Sm80>;
  EXPECT_FALSE(with([](auto&, auto&) {}, other));
}

TEST(TakesShortKernel, WhereWarpsSharePages) {
  kvant_decode_shape shape{sizeof shape, 1, 8, 8, 128, 1.0F, "tcq4", "tcq4"};
  kvant_decode_lengths lengths = sealed_lengths(64);
  const auto with_pages = [&](int n_seqs, int max_sealed_pages, bool share_pages = true) {
    shape.n_seqs = n_seqs;
    lengths.max_sealed_pages = max_sealed_pages;
    return takes_short_kernel(shape, lengths, kH100, share_pages);
  };
  EXPECT_TRUE(with_pages(1, 64));
  EXPECT_FALSE(with_pages(1, 65));
  EXPECT_TRUE(with_pages(4, 32));
  EXPECT_FALSE(with_pages(4, 33));
  EXPECT_TRUE(with_pages(16, 8));
  EXPECT_FALSE(with_pages(16, 9));
  // Each SM has one CTA in each of several waves.
  EXPECT_TRUE(with_pages(24, 4));
  EXPECT_FALSE(with_pages(24, 5));
  EXPECT_TRUE(with_pages(66, 4));
  EXPECT_FALSE(with_pages(67, 4));
  // Most SMs would be idle in the second wave.
  EXPECT_FALSE(with_pages(17, 4));
  // Formats that do not share pages have fewer pages and no waves.
  EXPECT_TRUE(with_pages(1, 32, false));
  EXPECT_FALSE(with_pages(1, 33, false));
  EXPECT_FALSE(with_pages(24, 4, false));
  // Kernels for up to 4 query heads of 128 channels, and heads of 64, have fewer pages and no waves.
  shape.group = 4;
  EXPECT_FALSE(with_pages(1, 33));
  EXPECT_FALSE(with_pages(24, 4));
  shape.group = 8;
  shape.head_dim = 64;
  EXPECT_FALSE(with_pages(1, 33));
  EXPECT_FALSE(with_pages(24, 4));
  shape.group = 1;
  shape.head_dim = 256;
  EXPECT_TRUE(with_pages(1, 64));
  EXPECT_FALSE(with_pages(24, 4));
}

TEST(TakesShortKernel, ForHalvesOfQueryHeads) {
  kvant_decode_shape shape{sizeof shape, 1, 2, 8, 256, 1.0F, "tcq4", "tcq4"};
  kvant_decode_lengths lengths = sealed_lengths(64);
  const auto halves = [&](int n_seqs, int max_sealed_pages) {
    shape.n_seqs = n_seqs;
    lengths.max_sealed_pages = max_sealed_pages;
    EXPECT_TRUE(takes_short_kernel(shape, lengths, kH100, true));
    return halves_are_faster(shape, lengths, kH100);
  };
  // Both kinds of clusters have 8 CTAs.
  EXPECT_TRUE(halves(1, 16));
  // Clusters have 4 or 2 CTAs, and CTAs have 1 or 2 pages.
  EXPECT_FALSE(halves(16, 4));
  // Clusters have 3 or 1 CTAs, and CTAs have 2 or 5 pages.
  EXPECT_FALSE(halves(20, 5));
  // Clusters have 3 or 2 CTAs, and CTAs have 5 or 7 pages.
  Gpu gpu = kH100;
  gpu.clusters[3] = 31;
  shape.n_seqs = 16;
  lengths.max_sealed_pages = 13;
  EXPECT_TRUE(halves_are_faster(shape, lengths, gpu));
  // With heads of 128, clusters of halves must have as many CTAs.
  shape.head_dim = 128;
  EXPECT_FALSE(halves_are_faster(shape, lengths, gpu));
  EXPECT_TRUE(halves(1, 16));
  // Not even clusters of one CTA run at once.
  EXPECT_FALSE(halves(100, 4));
}

}  // namespace
}  // namespace kvant::cuda::short_sealed_test
