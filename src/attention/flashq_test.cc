// Checks prompts in 8 bits (prompt=flashq). The reference is compared with attention in double precision,
// every instruction set with the reference, and the kernels with sums of whole numbers.
#include "device/cpu/kernels/flashq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "attention/attention_fixture.h"
#include "device/cpu/kernels/byte_kernels.h"

namespace kvant::flashq_test {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::plan_for;
using testing::small_geometry;

std::vector<float> row_of(int layer, int head, int kind, int token, int d) {
  std::vector<float> row = testing::token_values(layer, head, kind, token, d);
  for (float& x : row) x *= kind == kQueryRows ? 0.3F : 1.0F;
  return row;
}

testing::RowSource source(const Geometry& g) {
  return [g](int layer, int head, int kind, int token) {
    return row_of(layer, head, kind, token, g.dim(layer));
  };
}

// Returns all outputs of a prompt that is read in steps of `chunks` tokens.
std::vector<double> prompt_of(const std::string& recipe, const Geometry& g, AttentionBackend& backend,
                              const std::vector<int>& chunks) {
  Cache cache(plan_for(recipe, g, nullptr, backend.page_order()), 0);
  const SequenceId s = cache.add();
  std::vector<std::vector<double>> by_layer(g.n_layers);
  for (const int n : chunks) {
    const auto outputs = attend_tokens(cache, s, n, /*is_prompt=*/true, source(g), backend);
    for (int layer = 0; layer < g.n_layers; ++layer)
      by_layer[layer].insert(by_layer[layer].end(), outputs[layer].begin(), outputs[layer].end());
  }
  std::vector<double> all;
  for (const auto& rows : by_layer) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

// Computes attention over unquantized tokens in double precision.
std::vector<double> attention_in_double(const Geometry& g, int n) {
  std::vector<double> all;
  const int d = g.head_dim;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int t = 0; t < n; ++t) {
      for (int h = 0; h < g.n_heads; ++h) {
        const auto q = row_of(layer, h, kQueryRows, t, d);
        std::vector<double> scores;
        for (int j = 0; j <= t; ++j) {
          const auto k = row_of(layer, h / g.group(layer), kKeyRows, j, d);
          double score = 0;
          for (int c = 0; c < d; ++c) score += double{q[c]} * testing::rounded_to_bf16(k[c]);
          scores.push_back(score * g.softmax_scale);
        }
        const auto weights = testing::softmax_in_double(scores);
        std::vector<double> out(d, 0.0);
        for (int j = 0; j <= t; ++j) {
          const auto v = row_of(layer, h / g.group(layer), kValueRows, j, d);
          for (int c = 0; c < d; ++c) out[c] += weights[j] * testing::rounded_to_bf16(v[c]);
        }
        all.insert(all.end(), out.begin(), out.end());
      }
    }
  }
  return all;
}

TEST(FlashQReference, RoundsRowsToWholeNumbers) {
  std::vector<float> rows = {0.5F, -1.27F, 0.014F, 0, 0, 0, 0, 0, 63.6F, 127, 0.4F, -127};
  std::vector<float> scales(3);
  round_rows_to_bytes(rows.data(), 3, 4, scales.data());
  EXPECT_EQ(rows, (std::vector<float>{50, -127, 1, 0, 0, 0, 0, 0, 64, 127, 0, -127}));
  EXPECT_NEAR(scales[0], 0.01F, 1e-8F);
  EXPECT_EQ(scales[1], 1);
  EXPECT_EQ(scales[2], 1);
}

TEST(FlashQReference, IsRefusedWithSasAsPrinted) {
  const auto plan =
      resolve(parse_recipe("bf16,softmax=sas-paper,prompt=flashq").value(), small_geometry(), nullptr);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("softmax=sas"), std::string::npos) << plan.error().message;
}

TEST(FlashQReference, IsNearAttentionInDoublePrecision) {
  const Geometry g = small_geometry(64, 2, 1, 1);
  const auto backend = make_reference_backend();
  const auto right = attention_in_double(g, 300);
  const double exact = testing::relative_error(prompt_of("bf16", g, *backend, {300}), right);
  const double rounded = testing::relative_error(prompt_of("bf16,prompt=flashq", g, *backend, {300}), right);
  EXPECT_LT(exact, 1e-5);
  EXPECT_LT(rounded, 0.015);
  EXPECT_GT(rounded, 1e-4) << "nothing was rounded";
}

class FlashQ : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = cpu::find_kernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor (or this build) has no " << GetParam();
    backend_ = make_cpu_backend(GetParam());
  }

  // Both backends round to equal integers, except values that lie almost halfway between two integers.
  void expect_like_reference(const std::string& recipe, const Geometry& g, double maximum = 1.5e-3) {
    const std::string with_prompt = recipe + ",prompt=flashq";
    const auto reference = make_reference_backend();
    EXPECT_LT(testing::relative_error(prompt_of(with_prompt, g, *backend_, {300, 120}),
                                      prompt_of(with_prompt, g, *reference, {300, 120})),
              maximum)
        << recipe << ", d = " << g.head_dim;
  }

  const cpu::ByteKernels* kernels_ = nullptr;
  std::unique_ptr<AttentionBackend> backend_;
};
#define KVANT_INSTRUCTION_SET(set) INSTANTIATE_TEST_SUITE_P(set, FlashQ, ::testing::Values(#set));
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET

TEST_P(FlashQ, IsTheReferencesBehindPagesOfAnyFormat) {
  for (const char* recipe : {"bf16", "vecinfer-2bit", "k=ch4g128,v=tok4g128", "k=prog4,v=prog4,sink=20",
                             "k=hadamard:lm4,v=lm3", "q8_0", "vquant-4bit"}) {
    if (!parse_recipe(std::string(recipe) + ",prompt=flashq").ok()) continue;
    expect_like_reference(recipe, small_geometry(64, 3, 1, 1));
  }
}

// The backend multiplies the bytes of trellis codes unchanged, but the reference rounds decoded values first.
// The two may therefore differ, and only their errors are compared.
TEST_P(FlashQ, IsNoFurtherOffThanTheReferenceBehindTrellisCodes) {
  const auto reference = make_reference_backend();
  const std::vector<int> chunks = {300, 120};
  for (const int d : {64, 128}) {
    const Geometry g = small_geometry(d, 3, 1, 1);
    for (const std::string recipe :
         {"kvant-4bit", "kvant-2bit", "k=tcq3,v=ch4g128", "k=ch4g128,v=tcq4,sink=20"}) {
      const auto exact = prompt_of(recipe, g, *reference, chunks);
      const auto rounded = prompt_of(recipe + ",prompt=flashq", g, *reference, chunks);
      const auto fast = prompt_of(recipe + ",prompt=flashq", g, *backend_, chunks);
      EXPECT_LT(testing::relative_error(fast, exact), 1.05 * testing::relative_error(rounded, exact))
          << recipe;
    }
  }
}

TEST_P(FlashQ, IsTheReferencesForHeadsOfAnySize) {
  for (const int d : {72, 80, 96, 128, 256}) expect_like_reference("bf16", small_geometry(d, 5, 1, 1));
}

TEST_P(FlashQ, ObeysTheLayersRules) {
  Geometry g = small_geometry(64, 4, 2, 2);
  g.sliding_window = {0, 150};
  g.score_softcap = 5;
  expect_like_reference("bf16", g);
  expect_like_reference("k=mean:ch4g128,v=tok4g128,sink=4", small_geometry());
  expect_like_reference("k=ch4g128,v=tok4g128,softmax=sas", small_geometry());
  expect_like_reference("k=ch4g128,v=tok4g128,skip=1e-4", small_geometry());
}

TEST_P(FlashQ, DoesNotDependOnHowAPromptIsCut) {
  const Geometry g = small_geometry();
  for (const char* recipe : {"bf16,prompt=flashq", "k=ch4g128,v=tok4g128,sink=4,prompt=flashq"}) {
    const auto whole = prompt_of(recipe, g, *backend_, {400});
    const auto cut = prompt_of(recipe, g, *backend_, {1, 130, 49, 220});
    // Both lists are ordered by layer and then by token, so they can be compared element by element.
    ASSERT_EQ(whole.size(), cut.size());
    EXPECT_LT(testing::relative_error(cut, whole), 1e-6) << recipe;
  }
}

TEST_P(FlashQ, MultipliesBytesExactly) {
  if (kernels_->prompts.multiply == nullptr) GTEST_SKIP() << "multiplies in F32";
  std::mt19937 random(1);
  constexpr int kRows = 15, kQuads = 16, kLanes = 80;
  std::vector<std::uint8_t> rows(kRows * kQuads * 4);
  std::vector<std::int8_t> bytes(kQuads * kLanes * 4);
  for (auto& x : rows) x = static_cast<std::uint8_t>(random() % 4 == 0 ? 255 : random());
  for (auto& x : bytes) x = static_cast<std::int8_t>(random() % 4 == 0 ? -128 : random());
  std::vector<std::int32_t> first(kLanes);
  for (auto& x : first) x = static_cast<std::int32_t>(random() % 100000) - 50000;
  std::vector<float> factor(kRows), scale(kLanes), offset(kRows), lane_offset(kLanes), before(kRows * kLanes);
  for (auto* values : {&factor, &scale, &offset, &lane_offset, &before}) {
    for (float& x : *values) x = static_cast<float>(random() % 64);
  }
  for (const bool adds : {false, true}) {
    std::vector<float> out = before;
    kernels_->prompts.multiply({rows.data(), bytes.data(), kRows, kQuads, kLanes,
                                adds ? nullptr : first.data(), factor.data(), adds ? nullptr : scale.data(),
                                offset.data(), adds ? lane_offset.data() : nullptr, adds, out.data()});
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kLanes; ++i) {
        std::int64_t sum = adds ? 0 : first[i];
        for (int quad = 0; quad < kQuads; ++quad) {
          for (int k = 0; k < 4; ++k)
            sum += std::int64_t{rows[(r * kQuads + quad) * 4 + k]} * bytes[(quad * kLanes + i) * 4 + k];
        }
        const double right = static_cast<double>(sum) * factor[r] * (adds ? 1 : scale[i]) +
                             (adds ? before[r * kLanes + i] + offset[r] * lane_offset[i] : 0);
        EXPECT_NEAR(out[r * kLanes + i], right, 2e-7 * std::abs(right) + 1e-3);
      }
    }
  }
}

TEST_P(FlashQ, WeighsAsInDoublePrecision) {
  if (kernels_->prompts.weigh == nullptr) GTEST_SKIP() << "weighs in F32";
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> scores(kPageTokens), logs(kPageTokens), inverses(kPageTokens);
  for (int t = 0; t < kPageTokens; ++t) {
    scores[t] = t % 9 == 4 ? kUnseen : normal(random);
    logs[t] = normal(random) / 4;
    inverses[t] = std::exp2(-logs[t]);
  }
  std::vector<std::uint8_t> bytes(kPageTokens);
  const auto weighing = kernels_->prompts.weigh(scores.data(), logs.data(), inverses.data(), bytes.data());
  double top = -INFINITY, sum = 0;
  for (int t = 0; t < kPageTokens; ++t)
    top = std::max(top, double{scores[t]} * std::numbers::log2e + double{logs[t]});
  for (int t = 0; t < kPageTokens; ++t) {
    const double weight = std::exp(double{scores[t]} - top * std::numbers::ln2);
    sum += weight;
    EXPECT_NEAR(bytes[t], 255 * weight * std::exp2(double{logs[t]}), 0.52);
  }
  EXPECT_NEAR(weighing.top, top, 1e-5);
  EXPECT_NEAR(weighing.sum / sum, 1, 1e-4);
  std::fill(scores.begin(), scores.end(), kUnseen);
  EXPECT_EQ(kernels_->prompts.weigh(scores.data(), logs.data(), inverses.data(), bytes.data()).sum, 0);
  EXPECT_EQ(bytes, std::vector<std::uint8_t>(kPageTokens, 0));
}

}  // namespace
}  // namespace kvant::flashq_test
