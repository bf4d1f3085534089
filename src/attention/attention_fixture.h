// Gives tests of attention methods steps over their own values, and plain attention in double precision to
// compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "attention/attention.h"
#include "base/float16.h"
#include "cache/cache_fixture.h"

namespace kvant::testing {

constexpr int kKeyRows = 0, kValueRows = 1, kQueryRows = 2;

// Returns the row [d] of one token for a KV head (kKeyRows, kValueRows) or a query head (kQueryRows).
using RowSource = std::function<std::vector<float>(int layer, int head, int kind, int token)>;

using Outputs = std::vector<std::vector<float>>;  // [n, n_heads * d] for each layer

// Runs a step of one slice with attention. The caller must commit or abort the step.
inline Outputs run_step(Step& step, const RowSource& source, AttentionBackend& backend, int n_threads = 1) {
  const Geometry& g = step.plan().geometry;
  const int first = step.first_token(0), n = step.n_rows();
  const auto rows_of = [&](int layer, int n_heads, int kind) {
    std::vector<float> rows;
    for (int t = first; t < first + n; ++t) {
      for (int h = 0; h < n_heads; ++h) {
        const std::vector<float> row = source(layer, h, kind, t);
        rows.insert(rows.end(), row.begin(), row.end());
      }
    }
    return rows;
  };
  Outputs outputs;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int n_kv_heads = g.kv_heads(layer);
    const int q_size = g.n_heads * g.dim(layer), k_size = n_kv_heads * g.dim(layer);
    const auto q = rows_of(layer, g.n_heads, kQueryRows), k = rows_of(layer, n_kv_heads, kKeyRows),
               v = rows_of(layer, n_kv_heads, kValueRows);
    std::vector<float> out(q.size());
    const LayerRows rows{
        {q.data(), n, q_size}, {k.data(), n, k_size}, {v.data(), n, k_size}, {out.data(), n, q_size}};
    run_team(n_threads, [&](Team& team) { backend.run_layer(step, layer, rows, team); });
    outputs.push_back(std::move(out));
  }
  return outputs;
}

// Appends n tokens with attention and commits the step.
inline Outputs attend_tokens(Cache& cache, SequenceId s, int n, bool is_prompt, const RowSource& source,
                             AttentionBackend& backend) {
  auto step = cache.reserve({{s, n, is_prompt}});
  EXPECT_TRUE(step.ok()) << (step.ok() ? "" : step.error().message);
  Outputs outputs = run_step(**step, source, backend);
  const Status status = (*step)->commit();
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return outputs;
}
inline Outputs attend_tokens(Cache& cache, SequenceId s, int n, bool is_prompt, const RowSource& source) {
  const auto backend = make_reference_backend();
  return attend_tokens(cache, s, n, is_prompt, source, *backend);
}

// Makes a sequence of n tokens in steps of `chunk` tokens. After the step that reaches token 300, a fork
// takes the place of the sequence.
inline SequenceId attend_in_chunks(Cache& cache, int n, int chunk, bool is_prompt, const RowSource& source) {
  SequenceId s = cache.add();
  const auto backend = make_reference_backend();
  for (int done = 0; done < n; done += chunk) {
    attend_tokens(cache, s, std::min(chunk, n - done), is_prompt, source, *backend);
    if (done < 300 && done + chunk >= 300) {
      const SequenceId from = s;
      s = *cache.fork(from);
      cache.free(from);
    }
  }
  return s;
}

// Returns the row of `token` and `head` in a layer's outputs, which begin with token `first`.
inline const float* output_row(const std::vector<float>& outputs, const Geometry& g, int first, int token,
                               int head, int layer = 0) {
  return outputs.data() + (static_cast<std::ptrdiff_t>(token - first) * g.n_heads + head) * g.dim(layer);
}

inline double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Returns the weights exp(s - max s) / sum.
inline std::vector<double> softmax_in_double(std::vector<double> scores) {
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - top);
  for (double& s : scores) s /= sum;
  return scores;
}

// Returns the root mean square of a - b, divided by the root mean square of b.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    power += b[i] * b[i];
  }
  return std::sqrt(error / power);
}

inline float rounded_to_bf16(float x) {
  return float_from_bf16(bf16_from_float(x));
}

}  // namespace kvant::testing
