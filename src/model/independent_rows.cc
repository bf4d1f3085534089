#include "model/independent_rows.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "model/matrix_product.h"

namespace kvant {
namespace {

constexpr int kOutputs = 64;  // outputs of each weight that are tried; repacked weights interleave 16
constexpr int kMostRows = MatrixProduct::kGemmRows - 1;
constexpr std::size_t kOverhead = 1 << 20;

// Returns a view of the first n rows of a weight.
ggml_tensor* first_outputs(ggml_context* context, const ggml_tensor* weight, int n) {
  ggml_tensor* t = ggml_new_tensor_2d(context, weight->type, weight->ne[0], n);
  t->data = weight->data;
  t->buffer = weight->buffer;
  t->extra = weight->extra;
  return t;
}

// Multiplies rows 0 to n - 1 of x [n_in, kMostRows], as one batch, with the first outputs of the weight.
std::vector<float> product(const ggml_tensor* weight, int n_outputs, const float* x, int n) {
  const auto n_in = static_cast<std::size_t>(weight->ne[0]);
  std::vector<float> y(static_cast<std::size_t>(n) * n_outputs);
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
      ggml_init({kOverhead, nullptr, /*no_alloc=*/true}), ggml_free);
  KVANT_CHECK(context != nullptr, "no memory for a product's description");
  ggml_tensor* rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, weight->ne[0], n);
  std::vector<float> copy(x, x + n_in * n);
  rows->data = copy.data();
  ggml_tensor* out = ggml_mul_mat(context.get(), first_outputs(context.get(), weight, n_outputs), rows);
  out->data = y.data();
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, out);
  ggml_cplan plan = ggml_graph_plan(graph, /*n_threads=*/1, nullptr);
  std::vector<std::uint8_t> work(plan.work_size + 1);
  plan.work_data = work.data();
  KVANT_CHECK(ggml_graph_compute(graph, &plan) == GGML_STATUS_SUCCESS, "a product of a few rows failed");
  return y;
}

// Returns values without a pattern, about as large as activations.
std::vector<float> some_rows(std::int64_t n_in) {
  std::vector<float> x(static_cast<std::size_t>(n_in) * kMostRows);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * 37 % 10007));
  return x;
}

int independent_rows(const ggml_tensor* weight, int at_most) {
  const int n_outputs = static_cast<int>(std::min<std::int64_t>(kOutputs, weight->ne[1]));
  const std::vector<float> x = some_rows(weight->ne[0]);
  std::vector<float> alone;
  for (int row = 0; row < at_most; ++row) {
    const std::vector<float> y = product(weight, n_outputs, x.data() + row * weight->ne[0], 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (int n = 2; n <= at_most; ++n) {
    const std::vector<float> together = product(weight, n_outputs, x.data(), n);
    if (std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)) != 0) return n - 1;
  }
  return at_most;
}

}  // namespace

int independent_rows(const Weights& weights, int n_layers) {
  std::vector<const ggml_tensor*> matrices = {weights.output()};
  for (int i = 0; i < n_layers; ++i) {
    const LayerWeights& w = weights.layer(i);
    for (const ggml_tensor* t : {w.qkv, w.q, w.k, w.v, w.delta.qkv, w.delta.z, w.delta.beta, w.delta.alpha,
                                 w.delta.beta_alpha, w.attn_out, w.ffn.gate, w.ffn.up, w.ffn.down, w.router,
                                 w.shared.gate, w.shared.up, w.shared.down, w.embd_gate, w.embd_out}) {
      if (t != nullptr) matrices.push_back(t);
    }
  }
  // Each entry has the type, the kind of memory and the number of inputs.
  std::set<std::tuple<int, const void*, std::int64_t>> tried;
  int n = kMostRows;
  for (const ggml_tensor* t : matrices) {
    const bool is_new = tried.emplace(t->type, t->extra, t->ne[0]).second;
    if (is_new && n > 1) n = independent_rows(t, n);
  }
  return n;
}

}  // namespace kvant
