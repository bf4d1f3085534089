#include "device/cpu/kernels/integer_products.h"

#include <algorithm>
#include <cmath>

#include "base/gemm.h"
#include "base/simd_clones.h"
#include "base/softmax.h"

namespace kvant {

namespace {

void decode_integers(const PageSide& side, int n_tokens, TileScratch& scratch) {
  side.format->decode_integers(side.bytes, n_tokens, *side.context, scratch.page.data(),
                               scratch.block_scales.data());
}

}  // namespace

void score_integers(const QueryTile& tile, const PageView& page, int head_dim, TileScratch& scratch) {
  decode_integers(page.k, page.n_tokens, scratch);
  gemm(tile.rows(), page.n_tokens, head_dim, row_major(tile.q.data(), head_dim),
       transposed(scratch.page.data(), head_dim), /*accumulate=*/false, scratch.scores.data(), kPageTokens);
  for (int r = 0; r < tile.rows(); ++r) {
    float* scores = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
    for (int t = 0; t < page.n_tokens; ++t)
      scores[t] *= tile.q_scale[r] * scratch.block_scales[t / kIntegerBlock];
  }
}

void mix_integers(int rows, const PageView& page, int head_dim, TileScratch& scratch, float* accumulator) {
  decode_integers(page.v, page.n_tokens, scratch);
  scratch.products.resize(static_cast<std::size_t>(rows) * head_dim);
  for (int first = 0; first < page.n_tokens; first += kIntegerBlock) {
    const int n = std::min(kIntegerBlock, page.n_tokens - first);
    std::vector<float> scales(rows);
    for (int r = 0; r < rows; ++r) {
      scales[r] =
          round_to_integers(scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens + first, n);
    }
    const float* v = scratch.page.data() + static_cast<std::ptrdiff_t>(first) * head_dim;
    gemm(rows, head_dim, n, row_major(scratch.scores.data() + first, kPageTokens), row_major(v, head_dim),
         /*accumulate=*/false, scratch.products.data(), head_dim);
    const float v_scale = scratch.block_scales[first / kIntegerBlock];
    for (int r = 0; r < rows; ++r) {
      add_scaled_row(accumulator + static_cast<std::ptrdiff_t>(r) * head_dim,
                     scratch.products.data() + static_cast<std::ptrdiff_t>(r) * head_dim, head_dim,
                     scales[r] * v_scale);
    }
  }
}

namespace {

constexpr float kTiny = 0x1p-100F;
constexpr int kLanes = 16;

KVANT_SIMD_CLONES float largest_magnitude(const float* x, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float magnitude = std::fabs(x[i + j]);
      lanes[j] = magnitude > lanes[j] ? magnitude : lanes[j];
    }
  }
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], std::fabs(x[i]));
  for (int half = kLanes / 2; half > 0;
       half /= 2) {  // Pairs are compared in parallel, not one after another.
    for (int j = 0; j < half; ++j) lanes[j] = lanes[half + j] > lanes[j] ? lanes[half + j] : lanes[j];
  }
  return lanes[0];
}

// Rounds to the nearest integers, halves to even. A sum of the size of kNoFraction has no bits for fractions,
// so the addition rounds them away.
KVANT_SIMD_CLONES void round_row(float* x, int n, float reciprocal) {
  constexpr float kNoFraction = 0x1.8p23F;
  for (int i = 0; i < n; ++i) x[i] = (x[i] * reciprocal + kNoFraction) - kNoFraction;
}

}  // namespace

float round_to_integers(float* x, int n) {
  const float largest = largest_magnitude(x, n);
  const float scale = largest < kTiny ? 0 : largest / kIntegerMax;
  const float reciprocal = scale == 0 ? 0 : 1 / scale;
  round_row(x, n, reciprocal);
  return scale;
}

void quantize_queries(QueryTile& tile, int head_dim) {
  tile.q_scale.resize(tile.rows());
  for (int r = 0; r < tile.rows(); ++r) {
    tile.q_scale[r] = round_to_integers(tile.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim, head_dim);
  }
}

}  // namespace kvant
