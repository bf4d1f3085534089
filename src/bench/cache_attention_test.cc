#include "bench/cache_attention.h"

#include <gtest/gtest.h>

#include "base/float16.h"
#include "bench/attention_oracle.h"
#include "cache/page_pool.h"

namespace kvant {
namespace {

constexpr AttentionHeads kShape{6, 2, 64};

std::shared_ptr<const Plan> plan_for(const std::string& recipe, int context, std::int64_t working_set = 0,
                                     const AttentionHeads& shape = kShape,
                                     PageOrder order = PageOrder::canonical) {
  const auto parsed = parse_recipe(recipe);
  EXPECT_TRUE(parsed.ok()) << recipe;
  const auto plan = plan_without_model(*parsed, shape, context, working_set, order);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return plan.ok() ? *plan : nullptr;
}

std::unique_ptr<CacheAttention> contender(const std::shared_ptr<const Plan>& plan, int context,
                                          int n_threads = 1) {
  auto made = CacheAttention::make(plan, make_reference_backend(), context, n_threads);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

// Adds the rows of one side of a page, without the tokens that are hidden from attention.
void add_rows(const PageView& page, const PageSide& side, testing::Rows& rows) {
  const int d = side.context->head_dim;
  std::vector<float> values(static_cast<std::size_t>(page.n_tokens) * d);
  side.format->decode(side.bytes, page.n_tokens, *side.context, values.data());
  for (int t = 0; t < page.n_tokens; ++t) {
    if (page.masked.test(t)) continue;
    rows.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(t) * d,
                      values.begin() + static_cast<std::ptrdiff_t>(t + 1) * d);
  }
}

// Returns a row in the precision of a BF16 tail.
std::vector<double> stored_row(const std::vector<float>& values, int row) {
  std::vector<double> stored;
  for (int c = 0; c < kShape.head_dim; ++c)
    stored.push_back(float_from_bf16(bf16_from_float(values[row * kShape.head_dim + c])));
  return stored;
}

std::vector<double> expected_output(const CacheAttention& attention, int layer) {
  std::vector<double> outputs;
  for (int head = 0; head < kShape.n_heads; ++head) {
    const int kv_head = head / (kShape.n_heads / kShape.n_kv_heads);
    std::vector<PageView> pages;
    attention.head(layer, kv_head).list_pages(0, pages);
    testing::Rows k, v;
    for (const PageView& page : pages) {
      add_rows(page, page.k, k);
      add_rows(page, page.v, v);
    }
    k.push_back(stored_row(attention.values().k, kv_head));
    v.push_back(stored_row(attention.values().v, kv_head));
    const float* q = attention.values().q.data() + static_cast<std::ptrdiff_t>(head) * kShape.head_dim;
    const auto output = testing::attention_in_double({q, q + kShape.head_dim}, k, v);
    outputs.insert(outputs.end(), output.begin(), output.end());
  }
  return outputs;
}

TEST(CacheAttention, AttendsToItsCacheAndTheNewToken) {
  for (const char* recipe : {"bf16", "k=ch4g128,v=tok4g128,sink=4,window=128,k@2=bf16"}) {
    for (const PageOrder order : {PageOrder::canonical, PageOrder::lanes}) {
      const auto attention = contender(plan_for(recipe, 700, 0, kShape, order), 700, /*n_threads=*/2);
      ASSERT_TRUE(attention->layer_seconds().ok());
      const int last_layer = attention->n_layers() - 1;
      EXPECT_LT(testing::relative_rms_error(attention->output(), expected_output(*attention, last_layer)),
                1e-5)
          << recipe;
    }
  }
}

TEST(CacheAttention, ForgetsTheNewToken) {
  const auto attention = contender(plan_for("kivi-2bit,sink=4", 640), 640);
  const double bytes = attention->layer_bytes();
  ASSERT_TRUE(attention->layer_seconds().ok());
  const std::vector<float> first(attention->output().begin(), attention->output().end());
  ASSERT_TRUE(attention->layer_seconds().ok());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), attention->output().begin()));
  EXPECT_EQ(attention->head(0, 0).length(), 640);
  EXPECT_EQ(attention->layer_bytes(), bytes);
}

TEST(CacheAttention, CountsTheBytesThatAStepReads) {
  // The cache has 5 sealed pages, and 60 tokens in a BF16 tail whose page has room for 128.
  const auto attention = contender(plan_for("tok4g32s", 700), 700);
  const int kv_elements = 2 * kShape.n_kv_heads * kShape.head_dim;  // numbers of one token, K and V
  EXPECT_DOUBLE_EQ(attention->layer_bytes(), kv_elements * (640 * 4.5 / 8 + 60 * 2));
  EXPECT_EQ(attention->kernels(), std::vector<std::string>{"reference"});
}

TEST(CacheAttention, FillsTheWorkingSetWithLayers) {
  const int bf16_layer = 256 * 2 * kShape.n_kv_heads * kShape.head_dim * 2;  // bytes
  EXPECT_EQ(plan_for("bf16", 256, 5 * bf16_layer)->geometry.n_layers, 5);
  EXPECT_EQ(plan_for("bf16", 256, 5 * bf16_layer + 1)->geometry.n_layers, 6);
  EXPECT_EQ(plan_for("bf16", 256, 1)->geometry.n_layers, 1);
  EXPECT_EQ(plan_for("bf16,k@3-8=fp8", 256, 1)->geometry.n_layers, 9);
  EXPECT_EQ(plan_for("bf16", 256, std::int64_t{1} << 40)->geometry.n_layers, 64);
}

TEST(CacheAttention, SpendsABudgetOfBits) {
  const auto plan = plan_for("kvant-3bit", 256, /*working_set=*/1 << 20);
  double bits = 0;
  for (const HeadPlan& head : plan->heads)
    bits += (head.k.sealed->bits(kShape.head_dim) + head.v.sealed->bits(kShape.head_dim)) / 2;
  bits /= static_cast<double>(plan->heads.size());
  EXPECT_LE(bits, plan->recipe.budget);
  EXPECT_GT(bits, plan->recipe.budget - 0.08);
}

TEST(CacheAttention, RunsEveryBuiltInRecipe) {
  const AttentionHeads small{2, 1, 64};
  for (const Recipe& recipe : builtin_recipes()) {
    for (const auto make : {make_reference_backend, +[] { return make_cpu_backend(); }}) {
      auto backend = make();
      const auto plan = plan_for(recipe.name, 300, 0, small, backend->page_order());
      auto attention = CacheAttention::make(plan, std::move(backend), 300, 1);
      ASSERT_TRUE(attention.ok()) << recipe.name;
      const auto seconds = (*attention)->layer_seconds();
      EXPECT_TRUE(seconds.ok()) << recipe.name << ": " << (seconds.ok() ? "" : seconds.error().message);
      EXPECT_GT((*attention)->bits(), 0) << recipe.name;
    }
  }
}

TEST(CacheAttention, RefusesImpossibleShapes) {
  const Recipe bf16 = *parse_recipe("bf16");
  const auto message = [&](const AttentionHeads& shape) {
    const auto plan = plan_without_model(bf16, shape, 128, 0, PageOrder::canonical);
    return plan.ok() ? "" : plan.error().message;
  };
  EXPECT_NE(message({30, 8, 128}).find("30 query heads"), std::string::npos);
  EXPECT_NE(message({32, 8, 100}).find("100"), std::string::npos);
  EXPECT_NE(message({32, 8, 520}).find("520"), std::string::npos);
  EXPECT_EQ(message({32, 8, 256}), "");
}

}  // namespace
}  // namespace kvant
