// Compares the CPU backend with the reference backend on caches of equal values. The tests cover every
// instruction set, every format, head sizes, groups, lengths, and the features of recipes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "attention/attention_fixture.h"
#include "base/testing/emulation.h"
#include "device/cpu/kernels/testing/small_number_error.h"

namespace kvant {
namespace {

using testing::attend_tokens;
using testing::kQueryRows;
using testing::Outputs;
using testing::plan_for;
using testing::small_geometry;

// Returns rows whose attention is neither uniform nor concentrated on one token.
testing::RowSource source(const Geometry& g) {
  return [g](int layer, int head, int kind, int token) {
    std::vector<float> row = testing::token_values(layer, head, kind, token, g.dim(layer));
    for (float& x : row) x *= kind == kQueryRows ? 0.5F : 1.0F;
    return row;
  };
}

// Holds the outputs of one backend for a prompt and for tokens that follow one by one.
struct Generation {
  std::vector<Outputs> tokens;
  std::vector<SkipCount> skipped;
};

Generation generation_of(const std::string& recipe, const Geometry& geometry, AttentionBackend& backend,
                         int prompt, int n_tokens) {
  Cache cache(plan_for(recipe, geometry, nullptr, backend.page_order()), 0);
  const SequenceId s = cache.add();
  Generation generation;
  attend_tokens(cache, s, prompt, true, source(geometry), backend);
  for (int i = 0; i < n_tokens; ++i) {
    generation.tokens.push_back(attend_tokens(cache, s, 1, false, source(geometry), backend));
  }
  generation.skipped = backend.skip_counts();
  return generation;
}

double relative_error(const Generation& fast, const Generation& reference) {
  std::vector<double> a, b;
  for (std::size_t i = 0; i < reference.tokens.size(); ++i) {
    for (std::size_t layer = 0; layer < reference.tokens[i].size(); ++layer) {
      a.insert(a.end(), fast.tokens[i][layer].begin(), fast.tokens[i][layer].end());
      b.insert(b.end(), reference.tokens[i][layer].begin(), reference.tokens[i][layer].end());
    }
  }
  return testing::relative_error(a, b);
}

// On an emulated processor every third format is enough, because decode_test.cc and prompt_test.cc attend to
// all of them.
std::vector<std::string> tested_formats() {
  return testing::fewer(format_names(), 3);
}

// Each instruction set is one parameter of the suite. A test of a set that this machine cannot run is
// reported as skipped.
class CpuBackend : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cpu::find_kernels(GetParam()) == nullptr)
      GTEST_SKIP() << "this processor (or this build) has no " << GetParam();
    backend_ = make_cpu_backend(GetParam());
  }

  // Runs `recipe` on the reference and on the backend. `maximum` is the largest relative error allowed.
  void expect_like_reference(const std::string& recipe, const Geometry& geometry, double maximum,
                             int prompt = 300, int n_tokens = 2) {
    const auto reference = make_reference_backend();
    const Generation expected = generation_of(recipe, geometry, *reference, prompt, n_tokens);
    const Generation found = generation_of(recipe, geometry, *backend_, prompt, n_tokens);
    EXPECT_LT(relative_error(found, expected), maximum)
        << recipe << ", d = " << geometry.head_dim << ", G = " << geometry.group(0) << ", " << prompt
        << " tokens";
  }

  std::unique_ptr<AttentionBackend> backend_;
};
#define KVANT_INSTRUCTION_SET(set) INSTANTIATE_TEST_SUITE_P(set, CpuBackend, ::testing::Values(#set));
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET

// Rounding levels and centroids to bytes costs accuracy, above all if a few channels are outliers, as in this
// test. With other formats only q and P are rounded, to 16 bits or to small numbers. One channel in 16 is 4
// times as large as the others, so the RMS of K is 1.4, and half of that for queries. The largest value of a
// query is at most 7 times the RMS.
double tolerance(const char* kernels, const std::string& format, const Geometry& g) {
  if (format.starts_with("vq") || format.starts_with("nvq")) return 0.035;
  const double product = 0.7 * std::sqrt(g.head_dim) * 1.4 * g.softmax_scale;
  return std::hypot(
      format.starts_with("lm") ? 0.015 : 1e-3,
      cpu::testing::small_number_error(cpu::find_kernels(kernels), format, g.head_dim, {7, product}));
}

TEST_P(CpuBackend, AttendsToEveryFormat) {
  for (const std::string& format : tested_formats()) {
    // int8 is a format of tails.
    if (format == "int8") continue;
    const std::string recipe = fmt::format("k={0},v={0}", format);
    const Geometry g = small_geometry(64, 3, 1, 1);
    expect_like_reference(recipe, g, tolerance(GetParam(), format, g), 140, 1);
  }
}

TEST_P(CpuBackend, AttendsToEveryFormatWithTheWidestHeads) {
  for (const std::string& format : tested_formats()) {
    const Format& known = *find_format(format);
    // Large codebooks take long to search.
    if (format == "int8" || known.constant_size(kMaxHeadDim) >= 16384) continue;
    const std::string recipe = fmt::format("k={0},v={0}", format);
    Geometry widest = small_geometry(kMaxHeadDim, 3, 1, 1);
    widest.softmax_scale = 1 / std::sqrt(static_cast<float>(kMaxHeadDim));
    expect_like_reference(recipe, widest, tolerance(GetParam(), format, widest), 140, 1);
  }
}

TEST_P(CpuBackend, AttendsWhereLayersDiffer) {
  for (const char* recipe :
       {"bf16", "kvant-4bit", "kvant-2bit", "turboattention-4bit", "k=ch4g128,v=tok4g128"})
    expect_like_reference(recipe, testing::unlike_layers(128, 64), 0.015);
}

TEST_P(CpuBackend, AttendsWithEveryHeadSizeAndGroup) {
  for (const char* format :
       {"bf16", "tok4g32s", "tok4g64", "ch2g128", "ch3g64", "prog4", "lm3", "tcq3", "vq-d4b8"}) {
    const std::string recipe = std::string("k=") + format + ",v=" + format;
    const auto expect_same = [&](const Geometry& g) {
      expect_like_reference(recipe, g, tolerance(GetParam(), format, g), 140, 1);
    };
    for (const int d : {80, 96, 128, 256, 512}) expect_same(small_geometry(d, 2, 1, 1));
    for (const int group : {1, 2, 4, 5, 7, 16}) expect_same(small_geometry(64, group, 1, 1));
  }
}

TEST_P(CpuBackend, AttendsAtEveryLength) {
  for (const int prompt : {1, 7, 127, 128, 129, 650}) {
    expect_like_reference("k=ch4g128,v=tok4g128,sink=4", small_geometry(64, 6, 2, 1), 1e-3, prompt, 3);
  }
}

// A prompt's 16-bit products round q and P to steps of 1 / 32512 of a row's largest value. The RMS error is
// 0.29 (1 / sqrt(12)) of a step. A score then errs by 9e-6 * max |q| * |K|, which stays below 1e-4 with the
// outlier channels of this test. The score's weight errs in proportion. Rounded weights add at most 9e-6 *
// sqrt(128) = 1e-4 of |V| per page. Codes of 1 bit come near the bound (2.6e-4 was seen), because all their
// values are large compared with the outputs.
constexpr double kPromptError = 3e-4;

// The queries fill whole and incomplete pages, and attend to sealed and unsealed pages.
double prompt_error(const std::string& recipe, const Geometry& g, const testing::RowSource& rows,
                    AttentionBackend& found) {
  const auto reference = make_reference_backend();
  std::vector<double> outputs[2];
  for (AttentionBackend* backend : {reference.get(), &found}) {
    Cache cache(plan_for(recipe, g, nullptr, backend->page_order()), 0);
    const SequenceId s = cache.add();
    for (const int chunk : {150, 263}) {
      std::vector<double>& all = outputs[backend == &found ? 1 : 0];
      for (const auto& layer : attend_tokens(cache, s, chunk, true, rows, *backend))
        all.insert(all.end(), layer.begin(), layer.end());
    }
  }
  return testing::relative_error(outputs[1], outputs[0]);
}

TEST_P(CpuBackend, ReadsPromptsAsTheReferenceDoes) {
  const auto expect_same = [&](const std::string& recipe, const Geometry& g) {
    EXPECT_LT(prompt_error(recipe, g, source(g), *backend_), kPromptError)
        << recipe << ", d = " << g.head_dim << ", G = " << g.group(0);
  };
  for (const std::string& format : tested_formats()) {
    if (format != "int8") expect_same(fmt::format("k={0},v={0}", format), small_geometry(64, 3, 1, 1));
  }
  for (const char* format : {"tok4g32s", "tok4g64", "tok3g16", "ch3g64", "tcq3"}) {
    for (const int d : {80, 96, 128, 256})
      expect_same(fmt::format("k={0},v={0}", format), small_geometry(d, 2, 1, 1));
  }
  Geometry g = small_geometry(64, 4, 2, 2);
  expect_same("k=tcq4,v=ch4g32,sink=4", g);
  expect_same("k=mean+hadamard:ch4g128,v=tok4g32,sink=4,window=128", g);
  g.sliding_window = {0, 150};
  g.score_softcap = 3;
  expect_same("k=tcq2,v=tok2g32,sink=4", g);
}

// One token has a far larger V than the others, and no query attends to it. The weights of the other tokens
// must be rounded as finely as without this token.
TEST_P(CpuBackend, RoundsWeightsOfPromptsByWhatTheyAreMultipliedWith) {
  constexpr int kLarge = 5;
  const Geometry g = small_geometry(64, 3, 1, 1);
  const auto rows = [&](int layer, int head, int kind, int token) {
    std::vector<float> row = source(g)(layer, head, kind, token);
    row[0] = kind == kQueryRows ? 20.0F : token == kLarge ? -20.0F : 0.0F;
    for (float& x : row) x *= kind == testing::kValueRows && token == kLarge ? 2000.0F : 1.0F;
    return row;
  };
  EXPECT_LT(prompt_error("k=tok8g32,v=tok4g32", g, rows, *backend_), kPromptError);
}

// A layer with biases, like Qwen2's, has channels of K that are about 100 in every token. Large channels of K
// must not make the rounding of queries coarser. Queries are rounded relative to their own largest value, and
// the biases add an equal amount to the scores of all tokens.
TEST_P(CpuBackend, ReadsPromptsWithBiasedKeys) {
  const Geometry g = small_geometry(64, 3, 1, 1);
  const auto rows = [&](int layer, int head, int kind, int token) {
    std::vector<float> row = source(g)(layer, head, kind, token);
    for (int c = 5; c < g.head_dim && kind == testing::kKeyRows; c += 20)
      row[c] += c % 40 == 5 ? 100.0F : -100.0F;
    return row;
  };
  for (const char* recipe :
       {"k=ch4g128,v=tok4g128", "k=tok4g32,v=tok4g32", "k=tok4g128,v=tok4g128", "k=tcq4,v=tcq4",
        "k=hadamard:tcq4,v=hadamard:tcq4", "k=mean+hadamard:tcq4,v=tcq4"}) {
    EXPECT_LT(prompt_error(recipe, g, rows, *backend_), kPromptError) << recipe;
  }
}

// Tests a prompt and a decoded token after a sealed page. If NaN were rounded to an integer, nobody would
// notice it.
TEST_P(CpuBackend, NamesAQueryThatIsNotANumber) {
  const Geometry g = small_geometry(64, 3, 1, 1);
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (const int n : {1, 20}) {
      Cache cache(plan_for("k=tcq3,v=tcq3", g, nullptr, backend_->page_order()), 0);
      const SequenceId s = cache.add();
      attend_tokens(cache, s, 130, true, source(g), *backend_);
      const auto rows = [&](int layer, int head, int kind, int token) {
        std::vector<float> row = source(g)(layer, head, kind, token);
        if (kind == kQueryRows && head == 1 && token == 130) row[7] = bad;
        return row;
      };
      auto step = cache.reserve({{s, n, n > 1}});
      ASSERT_TRUE(step.ok());
      testing::run_step(**step, rows, *backend_);
      const Status status = (*step)->commit();
      ASSERT_FALSE(status.ok()) << bad << ", " << n;
      EXPECT_NE(status.error().message.find("layer 0, query head 1, token 130 is not a finite number"),
                std::string::npos)
          << status.error().message;
    }
  }
}

TEST_P(CpuBackend, MixesFormats) {
  expect_like_reference("k=tcq2,v=vq-d8b8,k@0=vq-d4b8,v@0.1=ch3g32", small_geometry(), 0.03);
  expect_like_reference("k=bf16,v=tok2g128", small_geometry(), 1e-3);
}

TEST_P(CpuBackend, HandlesTheFeaturesOfRecipes) {
  Geometry g = small_geometry();
  for (const char* recipe :
       {"k=hadamard:tok4g128,v=hadamard:tok4g128,sink=4,window=128",
        "k=ch4g128,v=tok2g128,protect=0.05,window=128", "k=mean+hadamard:ch4g128,v=tok4g128",
        "k=ch4g128,v=tok4g128,evict=0.5", "k=ch4g128,v=tok4g128,window=128,sink=4,evict=1",
        "k=ch4g128,v=tok4g128,softmax=sas-paper",
        "k=ch2g128,v=hadamard:tok2g128,window=128,correction=relative",
        "k=ch2g128,v=hadamard:tok2g128,window=128,correction=absolute"}) {
    expect_like_reference(recipe, g, 2e-3, 400, 2);
  }
  g.sliding_window = {0, 150};
  expect_like_reference("k=ch4g128,v=tok4g128,sink=4", g, 1e-3, 400, 2);
  g.score_softcap = 3;
  expect_like_reference("k=mean:ch4g128,v=tok4g128", g, 1e-3, 400, 2);
}

// A step of many decoded tokens, as in an evaluation, must give what a user gets who decodes tokens one by
// one. The step crosses ends of pages.
TEST_P(CpuBackend, DecodesTokensOfOneStepAsOneByOne) {
  for (const char* recipe : {"k=hadamard:tcq4,v=hadamard:tcq4,sink=4", "k=ch2g128,v=tok2g128,window=128",
                             "k=prog4,v=prog4,products=integer,tail=int8,softmax=sas"}) {
    const Geometry g = small_geometry(64, 3, 1, 1);
    constexpr int kPrompt = 200, kTokens = 140;
    const Generation expected = generation_of(recipe, g, *backend_, kPrompt, kTokens);
    Cache cache(plan_for(recipe, g, nullptr, backend_->page_order()), 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, kPrompt, true, source(g), *backend_);
    const Outputs found = attend_tokens(cache, s, kTokens, false, source(g), *backend_);
    const std::size_t row = expected.tokens[0][0].size();
    for (int i = 0; i < kTokens; ++i) {
      const auto first = found[0].begin() + static_cast<std::ptrdiff_t>(i * row);
      EXPECT_TRUE(std::equal(first, first + static_cast<std::ptrdiff_t>(row), expected.tokens[i][0].begin()))
          << recipe << ", token " << i;
    }
  }
}

// The CPU backend and the reference round q and P to integers. A weight halfway between two integers may be
// rounded either way.
TEST_P(CpuBackend, MultipliesIntegersAsTheReferenceDoes) {
  for (const char* bits : {"2", "3", "4", "5"}) {
    const std::string format = std::string("prog") + bits;
    for (const char* softmax : {"exact", "sas"}) {
      const std::string recipe =
          fmt::format("k={0},v={0},products=integer,tail=int8,sink=4,softmax={1}", format, softmax);
      expect_like_reference(recipe, small_geometry(64, 6, 2, 1), 2e-3, bits[0] == '4' ? 650 : 300);
    }
  }
}

TEST_P(CpuBackend, SkipsWhatTheReferenceSkips) {
  const Geometry g = small_geometry(64, 6, 2, 1);
  const std::string recipe = "k=rhadamard:tok4g128,v=rhadamard:tok4g128,skip=1e-3";
  const auto reference = make_reference_backend();
  const Generation expected = generation_of(recipe, g, *reference, 500, 3);
  const Generation found = generation_of(recipe, g, *backend_, 500, 3);
  EXPECT_LT(relative_error(found, expected), 1e-3);
  ASSERT_EQ(found.skipped.size(), 1U);
  EXPECT_EQ(found.skipped[0].seen, expected.skipped[0].seen);
  EXPECT_NEAR(found.skipped[0].skipped, expected.skipped[0].skipped, 0.002 * expected.skipped[0].seen);
  EXPECT_GT(found.skipped[0].skipped, 0);
}

TEST(BestCpuBackend, GivesTheSameForAnyNumberOfThreads) {
  const Geometry g = small_geometry();
  const std::string recipe = "k=ch4g128,v=tok4g128";
  const auto outputs = [&](int n_threads) {
    const auto backend = make_cpu_backend();
    Cache cache(plan_for(recipe, g, nullptr, backend->page_order()), 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, 1000, true, source(g), *backend);
    auto step = cache.reserve({{s, 1, false}});
    return testing::run_step(**step, source(g), *backend, n_threads);
  };
  const Outputs one = outputs(1);
  EXPECT_EQ(outputs(2), one);
  EXPECT_EQ(outputs(5), one);
}

TEST(BestCpuBackend, IsNullForInstructionsThatTheMachineLacks) {
  EXPECT_EQ(make_cpu_backend("avx9000"), nullptr);
  for (const char* set : cpu::kInstructionSets)
    EXPECT_EQ(make_cpu_backend(set) != nullptr, cpu::find_kernels(set) != nullptr) << set;
}

TEST(BestCpuBackend, IsNamedInTheRefusalOfAnotherName) {
  const std::string message = make_backend("cpu/avx9000").error().message;
  for (const std::string set : cpu::kInstructionSets)
    EXPECT_EQ(message.find(" cpu/" + set) != std::string::npos, cpu::find_kernels(set.c_str()) != nullptr)
        << message;
}

TEST(BestCpuBackend, NamesItsKernels) {
  const Geometry g = small_geometry();
  const auto backend = make_cpu_backend("portable");
  if (backend == nullptr) GTEST_SKIP() << "the build lacks the portable kernels (KVANT_KERNELS)";
  const auto plan = plan_for("k=ch4g128,v=bf16", g, nullptr, backend->page_order());
  EXPECT_EQ(backend->kernel(*plan, 0, 0, Side::key).name, "cpu/portable/numbers4");
  EXPECT_EQ(backend->kernel(*plan, 0, 0, Side::value).name, "cpu/portable/rows");
}

}  // namespace
}  // namespace kvant
