#include "model/expert_network.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "model/expert_routing.h"

namespace kvant {
namespace {

std::vector<float> random_values(std::size_t n, std::uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

TEST(ChooseExperts, WeighsTheBestByASoftmaxOverAllOrOverThem) {
  Experts rules{.n = 4, .n_used = 2};
  std::vector<float> logits{std::log(1.0F), std::log(4.0F), std::log(2.0F), std::log(3.0F)};
  std::int32_t ids[2];
  float weights[2];
  const auto choose = [&](std::span<const float> bias = {}) {
    std::vector<float> copy = logits;
    choose_experts(rules, copy, bias, ids, weights);
  };
  choose();
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 3);
  EXPECT_FLOAT_EQ(weights[0], 0.4F);
  EXPECT_FLOAT_EQ(weights[1], 0.3F);
  rules.normalizes = true;
  rules.scale = 7;
  choose();
  EXPECT_FLOAT_EQ(weights[0], 4);
  EXPECT_FLOAT_EQ(weights[1], 3);
  rules = {.n = 4, .n_used = 2, .gating = Gating::softmax_of_chosen};
  choose();
  EXPECT_FLOAT_EQ(weights[0], 4.0F / 7);
  rules.gating = Gating::sigmoid;  // the sigmoids are x / (1 + x) for x = 1, 4, 2, 3
  const float bias[] = {1, 0, 0, 0};
  choose(bias);
  EXPECT_EQ(ids[0], 0);
  EXPECT_FLOAT_EQ(weights[0], 0.5F);
  EXPECT_EQ(ids[1], 1);
  EXPECT_FLOAT_EQ(weights[1], 0.8F);
}

TEST(ChooseExperts, LooksOnlyIntoTheBestGroups) {
  const Experts rules{.n = 6, .n_used = 2, .gating = Gating::sigmoid, .n_groups = 3, .n_groups_used = 1};
  // The best expert's group has the worse sum of its two best experts.
  std::vector<float> logits{4, -9, 2, 3, 1, 1};
  std::int32_t ids[2];
  float weights[2];
  choose_experts(rules, logits, {}, ids, weights);
  EXPECT_EQ(ids[0], 3);
  EXPECT_EQ(ids[1], 2);
}

// ExpertLayer holds a layer's experts, and computes their expected outputs in double precision.
class ExpertLayer {
 public:
  ExpertLayer(Activation activation, ggml_type type) : ExpertLayer(activation, type, type) {}
  ExpertLayer(Activation activation, ggml_type gate_type, ggml_type type)
      : context_(ggml_init({16 << 20, nullptr, false}), ggml_free) {
    architecture_.unit.activation = activation;
    hparams_.architecture = &architecture_;
    hparams_.n_embd = kEmbd;
    hparams_.experts = {.n = 5, .n_used = 2, .n_ff = kFf, .n_ff_shared = 8};
    weights_.experts = {matrix(gate_type, kEmbd, kFf),
                        matrix(type, kEmbd, kFf),
                        matrix(type, kFf, kEmbd),
                        vectors(kFf),
                        vectors(kFf),
                        vectors(kEmbd)};
    weights_.shared_gate = vectors(kEmbd, 1);
  }

  std::vector<float> run(int n_rows, int n_threads) {
    ExpertNetwork network(hparams_, n_threads);
    KVANT_CHECK(network.reserve(n_rows), "memory");
    std::vector<float> x = this->x(n_rows), logits = this->logits(n_rows), shared = this->shared(n_rows),
                       y(x.size());
    run_team(n_threads, [&](Team& team) {
      network.run(weights_,
                  {{x.data(), n_rows, kEmbd},
                   {logits.data(), n_rows, 5},
                   {shared.data(), n_rows, kEmbd},
                   {y.data(), n_rows, kEmbd}},
                  team);
    });
    return y;
  }

  std::vector<float> expected(int n_rows) const {
    const std::vector<float> x = this->x(n_rows), shared = this->shared(n_rows);
    std::vector<float> logits = this->logits(n_rows), y;
    for (int r = 0; r < n_rows; ++r) {
      std::int32_t ids[2];
      float weights[2];
      choose_experts(hparams_.experts, {logits.data() + r * 5, 5}, {}, ids, weights);
      const std::vector<double> in(x.begin() + r * kEmbd, x.begin() + (r + 1) * kEmbd);
      const double gate = product(weights_.shared_gate, nullptr, 0, in, 1)[0];
      std::vector<double> sum(kEmbd);
      for (int o = 0; o < kEmbd; ++o) sum[o] = shared[r * kEmbd + o] / (1 + std::exp(-gate));
      for (int slot = 0; slot < 2; ++slot) {
        const std::vector<double> out = expert(ids[slot], in);
        for (int o = 0; o < kEmbd; ++o) sum[o] += weights[slot] * out[o];
      }
      y.insert(y.end(), sum.begin(), sum.end());
    }
    return y;
  }

 private:
  static constexpr int kEmbd = 128, kFf = 160;
  static std::vector<float> x(int n_rows) { return random_values(n_rows * kEmbd, 1, 1); }
  static std::vector<float> logits(int n_rows) { return random_values(n_rows * 5, 2, 1); }
  static std::vector<float> shared(int n_rows) { return random_values(n_rows * kEmbd, 3, 1); }

  ggml_tensor* matrix(ggml_type type, int n_in, int n_out) {
    ggml_tensor* t = ggml_new_tensor_3d(context_.get(), type, n_in, n_out, 5);
    const auto values = random_values(ggml_nelements(t), ++seed_, 2 / std::sqrt(static_cast<float>(n_in)));
    if (type == GGML_TYPE_F32) {
      std::copy(values.begin(), values.end(), static_cast<float*>(t->data));
    } else {
      ggml_quantize_chunk(type, values.data(), t->data, 0, ggml_nrows(t), n_in, nullptr);
    }
    return t;
  }
  ggml_tensor* vectors(int n, int count = 5) {
    ggml_tensor* t = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n, count);
    const auto values = random_values(ggml_nelements(t), ++seed_, 0.2F);
    std::copy(values.begin(), values.end(), static_cast<float*>(t->data));
    return t;
  }

  static std::vector<double> product(const ggml_tensor* w, const ggml_tensor* bias, int expert,
                                     const std::vector<double>& x, int n_out) {
    std::vector<double> y(n_out);
    std::vector<float> row(w->ne[0]);
    for (int o = 0; o < n_out; ++o) {
      const char* from = static_cast<const char*>(w->data) + expert * w->nb[2] + o * w->nb[1];
      if (w->type == GGML_TYPE_F32) {
        std::copy_n(reinterpret_cast<const float*>(from), row.size(), row.data());
      } else {
        ggml_get_type_traits(w->type)->to_float(from, row.data(), w->ne[0]);
      }
      if (bias != nullptr) y[o] = static_cast<const float*>(bias->data)[expert * n_out + o];
      for (std::size_t i = 0; i < row.size(); ++i) y[o] += row[i] * x[i];
    }
    return y;
  }

  std::vector<double> expert(int e, const std::vector<double>& x) const {
    const NetworkWeights& w = weights_.experts;
    std::vector<double> gate = product(w.gate, w.gate_bias, e, x, kFf);
    const std::vector<double> up = product(w.up, w.up_bias, e, x, kFf);
    for (int i = 0; i < kFf; ++i) {
      const bool clipped = architecture_.unit.activation == Activation::clipped_silu;
      const double g = clipped ? std::min(gate[i], 7.0) : gate[i];
      const double u = clipped ? std::clamp(up[i], -7.0, 7.0) + 1 : up[i];
      gate[i] = g / (1 + std::exp(clipped ? -1.702 * g : -g)) * u;
    }
    return product(w.down, w.down_bias, e, gate, kEmbd);
  }

  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_;
  std::uint32_t seed_ = 10;
  Architecture architecture_{};
  Hparams hparams_;
  LayerWeights weights_;
};

TEST(ExpertNetwork, AgreesWithDoublePrecision) {
  for (const Activation activation : {Activation::silu, Activation::clipped_silu}) {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_MXFP4}) {
      ExpertLayer layer(activation, type);
      for (const int n_rows : {1, 7, 100}) {
        const std::vector<float> expected = layer.expected(n_rows);
        // With quantized weights, few rows are rounded to INT8.
        const double tolerance = type == GGML_TYPE_F32 || n_rows == 100 ? 1e-4 : 0.3;
        for (const int n_threads : {1, 3}) {
          const std::vector<float> y = layer.run(n_rows, n_threads);
          for (std::size_t i = 0; i < y.size(); ++i)
            ASSERT_NEAR(y[i], expected[i], tolerance) << ggml_type_name(type) << " " << n_rows << " " << i;
        }
      }
    }
  }
}

// Quantization programs choose a type for each tensor, so the types of gate and up may differ.
TEST(ExpertNetwork, TakesGateAndUpInDifferentTypes) {
  for (const ggml_type gate : {GGML_TYPE_Q4_0, GGML_TYPE_F32, GGML_TYPE_Q4_1}) {
    ExpertLayer layer(Activation::silu, gate, GGML_TYPE_Q8_0);
    for (const int n_rows : {3, 100}) {
      const std::vector<float> expected = layer.expected(n_rows), y = layer.run(n_rows, 2);
      for (std::size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(y[i], expected[i], n_rows == 100 ? 1e-4 : 0.3) << ggml_type_name(gate) << " " << i;
    }
  }
}

TEST(ExpertNetwork, GivesARowTheSameBitsWhateverIsBesideIt) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q8_0}) {
    ExpertLayer layer(Activation::silu, type);
    const std::vector<float> few = layer.run(20, 2), one = layer.run(1, 1);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), few.begin()));
    const std::vector<float> many = layer.run(700, 2), some = layer.run(64, 1);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), many.begin()));
  }
}

}  // namespace
}  // namespace kvant
