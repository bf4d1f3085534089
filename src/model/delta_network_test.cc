#include "model/delta_network.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

namespace kvant {
namespace {

std::vector<float> normal_values(std::size_t n, std::uint32_t seed, float mean, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, spread);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

// DeltaLayer holds a layer with random weights, and computes the layer's expected outputs in double precision
// with the paper's formulas.
class DeltaLayer {
 public:
  explicit DeltaLayer(bool grouped, int kernel = 4)
      : context_(ggml_init({8 << 20, nullptr, false}), ggml_free) {
    hparams.norm_epsilon = 1e-3F;
    hparams.delta_net = {
        .n_key_heads = 2, .n_value_heads = 6, .head_dim = 64, .grouped = grouped, .kernel = kernel};
    const DeltaNet& net = hparams.delta_net;
    weights.conv = tensor(kernel, net.channels(), 0, 0.6F);
    weights.dt_bias = tensor(net.n_value_heads, 1, -2, 1);
    weights.a = tensor(net.n_value_heads, 1, -1, 0.2F);
    weights.norm = tensor(net.head_dim, 1, 1, 0.2F);
  }

  // The tested layer is the second of two layers with delta nets.
  static constexpr int kPlace = 1, kLayers = 2;
  std::size_t state_values() const { return kLayers * hparams.delta_net.state_values(); }

  // Computes the expected outputs [n, inner] for rows [n, width] of a new sequence.
  std::vector<double> expected(const std::vector<float>& rows) const {
    const DeltaNet& net = hparams.delta_net;
    const int n = static_cast<int>(rows.size()) / net.width(), d = net.head_dim;
    std::vector<double> out(static_cast<std::size_t>(n) * net.inner());
    for (int h = 0; h < net.n_value_heads; ++h) {
      const bool grouped = net.grouped;
      const int key_head = grouped ? h / 3 : h % 2;
      std::vector<double> s(static_cast<std::size_t>(d) * d);  // [key channel, value channel]
      for (int t = 0; t < n; ++t) {
        const float* in = rows.data() + static_cast<std::ptrdiff_t>(t) * net.width();
        std::vector<double> q = convolved(rows, t, key_head * d), k = convolved(rows, t, (2 + key_head) * d),
                            v = convolved(rows, t, (4 + h) * d);
        to_unit_length(q);
        to_unit_length(k);
        const float* gates = in + net.channels() + net.inner();
        const double beta = grouped ? gates[h / 3 * 6 + h % 3] : gates[h];
        const double alpha = grouped ? gates[h / 3 * 6 + 3 + h % 3] : gates[6 + h];
        const double decay =
            std::exp(value(weights.a, h) * std::log1p(std::exp(alpha + value(weights.dt_bias, h))));
        double squares = 0;
        double* y = &out[static_cast<std::size_t>(t) * net.inner() + h * d];
        for (int c = 0; c < d; ++c) {
          double known = 0;
          for (int i = 0; i < d; ++i) known += decay * s[i * d + c] * k[i];
          for (int i = 0; i < d; ++i)
            s[i * d + c] = decay * s[i * d + c] + k[i] * (v[c] - known) / (1 + std::exp(-beta));
          for (int i = 0; i < d; ++i) y[c] += s[i * d + c] * q[i] / std::sqrt(d);
          squares += y[c] * y[c];
        }
        for (int c = 0; c < d; ++c)
          y[c] *= value(weights.norm, c) / std::sqrt(squares / d + hparams.norm_epsilon) *
                  silu(in[net.channels() + h * d + c]);
      }
    }
    return out;
  }

  // Runs all rows as one batch. The rows of `slices` follow one another.
  std::vector<float> run(std::vector<float> rows, std::vector<DeltaSlice> slices, int n_threads = 1) const {
    const DeltaNet& net = hparams.delta_net;
    const int n = static_cast<int>(rows.size()) / net.width();
    std::vector<float> out(static_cast<std::size_t>(n) * net.inner(), NAN);
    DeltaNetwork network(hparams);
    network.set_slices(std::move(slices));
    run_team(n_threads, [&](Team& team) {
      network.run(weights, kPlace, {{rows.data(), n, net.width()}, {out.data(), n, net.inner()}}, team);
    });
    return out;
  }

  std::vector<float> random_rows(int n, std::uint32_t seed) const {
    return normal_values(static_cast<std::size_t>(n) * hparams.delta_net.width(), seed, 0, 1);
  }

  Hparams hparams;
  DeltaNetWeights weights;

 private:
  ggml_tensor* tensor(int n_in, int n_out, float mean, float spread) {
    ggml_tensor* t = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n_in, n_out);
    const auto values = normal_values(static_cast<std::size_t>(n_in) * n_out, ++seed_, mean, spread);
    std::copy(values.begin(), values.end(), static_cast<float*>(t->data));
    return t;
  }
  static double value(const ggml_tensor* t, int i) { return static_cast<const float*>(t->data)[i]; }
  static double silu(double x) { return x / (1 + std::exp(-x)); }

  std::vector<double> convolved(const std::vector<float>& rows, int t, int first) const {
    const DeltaNet& net = hparams.delta_net;
    std::vector<double> result(net.head_dim);
    for (int c = 0; c < net.head_dim; ++c) {
      double sum = 0;
      for (int j = 0; j < net.kernel; ++j) {
        const int from = t - net.kernel + 1 + j;
        if (from >= 0)
          sum += value(weights.conv, (first + c) * net.kernel + j) *
                 rows[static_cast<std::size_t>(from) * net.width() + first + c];
      }
      result[c] = silu(sum);
    }
    return result;
  }
  void to_unit_length(std::vector<double>& x) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    for (double& v : x) v /= std::sqrt(squares + hparams.norm_epsilon);
  }

  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_;
  std::uint32_t seed_ = 0;
};

std::vector<float> part(const std::vector<float>& rows, int width, int first, int n) {
  return {rows.begin() + std::ptrdiff_t{first} * width, rows.begin() + std::ptrdiff_t{first + n} * width};
}

class DeltaNetworkOf : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Heads, DeltaNetworkOf, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "grouped" : "tiled"; });

TEST_P(DeltaNetworkOf, DoesWhatThePaperSays) {
  const DeltaLayer layer(GetParam());
  const std::vector<float> rows = layer.random_rows(50, 3);
  std::vector<float> after(layer.state_values());
  const std::vector<float> found = layer.run(rows, {{0, 50, nullptr, after.data()}});
  const std::vector<double> expected = layer.expected(rows);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
}

TEST_P(DeltaNetworkOf, GivesTheSameBitsInAnyCutOnAnyNumberOfThreads) {
  const DeltaLayer layer(GetParam(), /*kernel=*/3);
  const int width = layer.hparams.delta_net.width();
  const std::vector<float> rows = layer.random_rows(40, 4);
  std::vector<float> whole(layer.state_values());
  const std::vector<float> expected = layer.run(rows, {{0, 40, nullptr, whole.data()}});
  for (const int chunk : {1, 2, 7, 39}) {
    std::vector<float> before(layer.state_values()), after(before), found;
    for (int first = 0; first < 40; first += chunk) {
      const int n = std::min(chunk, 40 - first);
      const auto out =
          layer.run(part(rows, width, first, n), {{0, n, first == 0 ? nullptr : before.data(), after.data()}},
                    /*n_threads=*/3);
      found.insert(found.end(), out.begin(), out.end());
      std::swap(before, after);
    }
    EXPECT_EQ(found, expected) << chunk;
    EXPECT_EQ(before, whole) << chunk;
  }
}

TEST_P(DeltaNetworkOf, RunsSequencesBesideEachOtherAsEachAlone) {
  const DeltaLayer layer(GetParam());
  const int width = layer.hparams.delta_net.width(), inner = layer.hparams.delta_net.inner();
  const std::vector<float> rows = layer.random_rows(30, 5);
  std::vector<std::vector<float>> states(3, std::vector<float>(layer.state_values()));
  const std::vector<float> old = normal_values(layer.state_values(), 6, 0, 1);
  const std::vector<DeltaSlice> slices{{0, 1, old.data(), states[0].data()},
                                       {1, 20, nullptr, states[1].data()},
                                       {21, 9, old.data(), states[2].data()}};
  const std::vector<float> together = layer.run(rows, slices, /*n_threads=*/2);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    std::vector<float> state(layer.state_values());
    const DeltaSlice& s = slices[i];
    EXPECT_EQ(layer.run(part(rows, width, s.first_row, s.n_rows), {{0, s.n_rows, s.before, state.data()}}),
              part(together, inner, s.first_row, s.n_rows));
    EXPECT_EQ(state, states[i]);
  }
}

}  // namespace
}  // namespace kvant
