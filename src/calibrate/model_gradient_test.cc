#include "calibrate/model_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/attention.h"
#include "model/architecture.h"
#include "model/engine.h"
#include "model/tiny_variants.h"
#include "recipe/plan.h"

namespace kvant {
namespace {

constexpr int kTokens = 192;  // a sealed page, and queries that read it
constexpr int kScored = kTokens - kPageTokens;

// Erring lets the model run in two steps. The first step covers the first page. The first step leaves K and V
// with errors in the cache, but its own tokens attend without errors. A sealed page in the cache is read in
// the same way.
class Erring final : public BackendDecorator {
 public:
  Erring(AttentionBackend& inner, const Geometry& geometry, std::uint32_t seed)
      : BackendDecorator(inner), g_(geometry) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::size_t size = static_cast<std::size_t>(kPageTokens) * g_.n_kv_heads * g_.head_dim;
    for (auto& side : errors_) {
      side.resize(g_.n_layers, std::vector<float>(size));
      for (auto& layer : side)
        for (float& e : layer) e = normal(random);
    }
    outputs_.resize(g_.n_layers);
  }

  double scale = 0;  // errors are multiplied by this
  bool records = false;

  float error(Side side, int layer, int token, int kv_head, int channel) const {
    return errors_[static_cast<int>(side)][layer]
                  [(static_cast<std::size_t>(token) * g_.n_kv_heads + kv_head) * g_.head_dim + channel];
  }

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    if (rows.k.rows != kPageTokens) return inner().run_layer(step, layer, rows, team);
    std::vector<float> k = erring(rows.k, 0, layer), v = erring(rows.v, 1, layer);
    LayerRows changed = rows;
    changed.k = {k.data(), rows.k.rows, rows.k.cols};
    changed.v = {v.data(), rows.v.rows, rows.v.cols};
    inner().run_layer(step, layer, changed, team);
    std::vector<float>& kept = outputs_[layer];
    if (records) kept.clear();
    for (int r = 0; r < rows.out.rows; ++r) {
      float* row = rows.out.row(r);
      if (records) kept.insert(kept.end(), row, row + rows.out.cols);
      std::copy_n(kept.data() + static_cast<std::ptrdiff_t>(r) * rows.out.cols, rows.out.cols, row);
    }
  }

 private:
  std::vector<float> erring(MatrixView<const float> x, int side, int layer) const {
    std::vector<float> all;
    for (int r = 0; r < x.rows; ++r)
      for (int i = 0; i < x.cols; ++i)
        all.push_back(x.row(r)[i] + static_cast<float>(scale * errors_[side][layer][all.size()]));
    return all;
  }

  Geometry g_;
  std::vector<std::vector<float>> errors_[2];  // [kPageTokens, n_kv_heads, head_dim] for each side and layer
  std::vector<std::vector<float>> outputs_;
};

std::vector<std::int32_t> tokens_of_noise() {
  std::mt19937 random(5);
  std::vector<std::int32_t> tokens(kTokens);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(3 + random() % 200);
  return tokens;
}

// Returns the log softmax [kScored, n_vocab] after each token that follows the first page, in double
// precision.
std::vector<std::vector<double>> predictions(Engine& engine, Erring& backend,
                                             const std::vector<std::int32_t>& tokens) {
  const auto plan = resolve(*parse_recipe("k=f16,v=f16"), engine.geometry(), nullptr);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  Cache cache(*plan, 0);
  const SequenceId sequence = cache.add();
  const std::span<const std::int32_t> all(tokens);
  const EngineInput page{sequence, all.first(kPageTokens), true, kPageTokens};
  EXPECT_TRUE(engine.step(cache, backend, {&page, 1}, {}).ok());
  std::vector<float> logits(static_cast<std::size_t>(kScored) * engine.n_vocab());
  const EngineInput rest{sequence, all.subspan(kPageTokens), true, 0};
  EXPECT_TRUE(engine.step(cache, backend, {&rest, 1}, {logits.data(), kScored, engine.n_vocab()}).ok());
  std::vector<std::vector<double>> rows;
  for (int t = 0; t < kScored; ++t) {
    const float* row = logits.data() + static_cast<std::ptrdiff_t>(t) * engine.n_vocab();
    rows.emplace_back(row, row + engine.n_vocab());
    double sum = 0;
    for (const double x : rows.back()) sum += std::exp(x);
    for (double& x : rows.back()) x -= std::log(sum);
  }
  return rows;
}

// Returns the divergence of the predictions with errors, summed over the scored positions.
double divergence(Engine& engine, Erring& backend, const std::vector<std::int32_t>& tokens, double scale) {
  backend.scale = 0;
  backend.records = true;
  const auto exact = predictions(engine, backend, tokens);
  backend.scale = scale;
  backend.records = false;
  const auto changed = predictions(engine, backend, tokens);
  double sum = 0;
  for (int t = 0; t < kScored; ++t)
    for (std::size_t i = 0; i < exact[t].size(); ++i)
      sum += std::exp(exact[t][i]) * (exact[t][i] - changed[t][i]);
  return sum;
}

TinyModel tiny(const Architecture& architecture) {
  TinyModel model;
  model.architecture = architecture.name;
  const LayerProgram& layer = architecture.layer;
  model.qk_norm = find_step<NormHeads>(layer.attention) != nullptr;
  // With key_octaves, the engine balances the norms of queries and keys.
  if (model.qk_norm) model.key_octaves = 2;
  model.post_norms = find_step<Norm>(layer.back) != nullptr;
  model.fused_gate_up = model.fused_qkv = architecture.unit.fused;
  model.qkv_bias = std::string(architecture.name) == "qwen2";
  model.tied = architecture.scales_embedding;
  if (architecture.windows.period > 0) model.integers["attention.sliding_window"] = 100;
  if (architecture.scores.softcap > 0) model.numbers["attn_logit_softcapping"] = 2;
  return model;
}

class Gradients : public ::testing::TestWithParam<Variant> {};

// Small errors change the heads' outputs by d. By the definition of Fisher's information, the divergence is
// the mean of (g . d)^2 / 2 over the random signs of g.
TEST_P(Gradients, ForeseeTheDivergence) {
  const auto file = write_tiny_model(GetParam().model);
  auto engine = Engine::load(file->path(), {.n_threads = 1});
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const Geometry& g = (*engine)->geometry();
  const std::vector<std::int32_t> tokens = tokens_of_noise();
  const auto reference = make_reference_backend();
  Erring backend(*reference, g, 1);
  constexpr double kScale = 0.01;
  const double expected = divergence(**engine, backend, tokens, kScale);
  ASSERT_GT(expected, 1e-4);
  ASSERT_LT(expected, 0.1 * kScored);

  constexpr int kDraws = 64;
  const auto model = make_host_model((*engine)->parts(), /*n_threads=*/1);
  double mean = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    double along = 0;
    const GradientRequest request{tokens, kPageTokens, static_cast<std::uint64_t>(draw),
                                  1,      [](int) {},  nullptr};
    const auto visit = [&](int layer, const LayerGradient& state) {
      std::vector<float> memory(static_cast<std::size_t>(kPageTokens) * g.head_dim);
      const MatrixView<float> page(memory.data(), kPageTokens, g.head_dim);
      for (const Side side : kSides) {
        for (int head = 0; head < g.n_heads; ++head) {
          const int kv_head = head / g.group(layer);
          for (int token = 0; token < kPageTokens; ++token)
            for (int i = 0; i < g.head_dim; ++i)
              page.row(token)[i] = state.stored(kv_head, side).row(token)[i] +
                                   static_cast<float>(kScale * backend.error(side, layer, token, kv_head, i));
          HeadAttention attention = state.attention(head);
          std::vector<double> effects(kScored, 0.0);
          attention.look_at(1, state.output_gradient(head).slice(kPageTokens, kScored));
          attention.add_effects(side, packed_pages(side, page, state.stored(kv_head, side)), effects.data());
          for (const double effect : effects) along += effect;
        }
      }
    };
    ASSERT_TRUE(model_gradient(*model, request, visit).ok());
    mean += along * along / 2 / kDraws;
  }
  EXPECT_NEAR(mean, expected, 3 * std::sqrt(2.0 / kDraws) * expected);
}

INSTANTIATE_TEST_SUITE_P(Architectures, Gradients, ::testing::ValuesIn([] {
                           std::vector<Variant> all;
                           for (const char* name : {"gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3"})
                             all.push_back({name, tiny(*find_architecture(name))});
                           // These models have other norms, networks without gates, and layers without RoPE.
                           for (const Variant& v : dense_variants())
                             for (const std::string name : {"arcee", "hunyuan_dense", "nemotron", "olmo3",
                                                            "smollm3", "stablelm_parallel"})
                               if (v.name == name) all.push_back(v);
                           return all;
                         }()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Gradient, DoesNotDependOnThreads) {
  const auto file = write_tiny_model(TinyModel{});
  auto engine = Engine::load(file->path(), {.n_threads = 1});
  ASSERT_TRUE(engine.ok());
  const std::vector<std::int32_t> tokens = tokens_of_noise();
  const auto values = [&](int n_threads) {
    std::vector<float> all;
    const auto model = make_host_model((*engine)->parts(), n_threads);
    const GradientRequest request{tokens, kPageTokens, 1, n_threads, [](int) {}, nullptr};
    EXPECT_TRUE(model_gradient(*model, request, [&](int, const LayerGradient& state) {
                  for (int r = 0; r < kTokens; ++r) {
                    const float* row = state.output_gradient(1).row(r);
                    all.insert(all.end(), row, row + (*engine)->geometry().head_dim);
                  }
                }).ok());
    return all;
  };
  EXPECT_EQ(values(1), values(3));
}

}  // namespace
}  // namespace kvant
