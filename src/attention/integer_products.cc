#include "attention/integer_products.h"

#include <algorithm>
#include <cmath>

#include "attention/integer_rounding.h"
#include "attention/softmax.h"
#include "base/gemm.h"

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

}  // namespace kvant
