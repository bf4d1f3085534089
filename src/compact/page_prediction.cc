#include "compact/page_prediction.h"

#include <algorithm>
#include <utility>

#include "base/simd_clones.h"
#include "compact/trellis_page.h"
#include "transform/walsh_hadamard.h"

namespace kvant {
namespace {

constexpr int kBlockTokens = 16;  // The inputs of this many tokens stay in the first-level cache.

// Computes sums [kPageTokens, d] = x [kPageTokens, n] . weights [d, n], transposed. The sums are exact,
// because |x| and |weights| are small enough for 32 bits.
KVANT_SIMD_CLONES void multiply_inputs(const std::int16_t* x, const std::int16_t* weights, int n, int d,
                                       std::int32_t* sums) {
  for (int block = 0; block < kPageTokens; block += kBlockTokens) {
    for (int c = 0; c < d; ++c) {
      const std::int16_t* of_channel = weights + static_cast<std::ptrdiff_t>(c) * n;
      for (int t = block; t < block + kBlockTokens; t += 4) {  // Four tokens share the loaded weights.
        const std::int16_t *row0 = x + static_cast<std::ptrdiff_t>(t) * n, *row1 = row0 + n, *row2 = row1 + n,
                           *row3 = row2 + n;
        std::int32_t sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
        for (int i = 0; i < n; ++i) {
          const std::int32_t weight = of_channel[i];
          sum0 += row0[i] * weight;
          sum1 += row1[i] * weight;
          sum2 += row2[i] * weight;
          sum3 += row3[i] * weight;
        }
        std::int32_t* to = sums + static_cast<std::ptrdiff_t>(t) * d + c;
        to[0] = sum0;
        to[d] = sum1;
        to[2 * d] = sum2;
        to[3 * d] = sum3;
      }
    }
  }
}
static_assert(std::int64_t{kMostInputs} * kLargestInput * 127 < std::int64_t{1} << 31);

int order_of(const SidePlan& side, int d) {
  return side.transform_names.empty() ? 1 : hadamard_order(d);
}

}  // namespace

PagePrediction::PagePrediction(const Plan& plan, const Predictor& predictor)
    : plan_(plan), predictor_(predictor) {}

void PagePrediction::begin(int page) {
  page_ = page;
}

void PagePrediction::begin_layer(int before, int layer) {
  std::swap(known_, known_before_);
  before_ = before;
  layer_ = layer;
  const Geometry& g = plan_.geometry;
  const auto n = static_cast<std::size_t>(kPageTokens) * g.kv_heads(layer) * g.dim(layer);
  known_.k.assign(n, 0);
  known_.v.assign(n, 0);
}

void PagePrediction::gather(const HeadInputs& inputs) {
  const Geometry& g = plan_.geometry;
  inputs_.resize(static_cast<std::size_t>(kPageTokens) * inputs.n());
  std::int16_t* to = inputs_.data();
  const auto copy = [&](const std::vector<std::int16_t>& from, int layer, const ChannelRun& run, int t) {
    if (run.n == 0) return;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(t) * g.kv_heads(layer) * g.dim(layer);
    to = std::copy_n(from.data() + row + run.first, run.n, to);
  };
  for (int t = 0; t < kPageTokens; ++t) {
    copy(known_before_.k, before_, inputs.k_before, t);
    copy(known_before_.v, before_, inputs.v_before, t);
    copy(known_.k, layer_, inputs.k_own, t);
  }
}

void PagePrediction::predict(int kv_head, Side side, std::int32_t* expected) {
  const int d = plan_.geometry.dim(layer_);
  const HeadPredictor& head = predictor_.layers[layer_].head(side, kv_head);
  const HeadInputs inputs = head_inputs(plan_.geometry, before_, layer_, kv_head, side);
  gather(inputs);
  multiply_inputs(inputs_.data(), head.weights.data(), inputs.n(), d, expected);
  for (int t = 0; t < kPageTokens; ++t) {
    std::int32_t* row = expected + static_cast<std::ptrdiff_t>(t) * d;
    for (int c = 0; c < d; ++c) {
      const std::int64_t units =
          head.offsets[c] + (std::int64_t{row[c]} * head.multipliers[c] >> kMultiplierBits);
      row[c] = static_cast<std::int32_t>(std::clamp<std::int64_t>(units, -kLargestUnits, kLargestUnits));
    }
  }
  from_model_space(layer_, kv_head, side, expected);
}

void PagePrediction::tell(int kv_head, Side side, std::int32_t* values) {
  to_model_space(layer_, kv_head, side, values);
  const int d = plan_.geometry.dim(layer_), stride = plan_.geometry.kv_heads(layer_) * d;
  const HeadPredictor& head = predictor_.layers[layer_].head(side, kv_head);
  for (int t = 0; t < kPageTokens; ++t) {
    std::int16_t* to = known_.side(side).data() + static_cast<std::ptrdiff_t>(t) * stride + kv_head * d;
    for (int c = 0; c < d; ++c)
      to[c] = input_of(values[static_cast<std::ptrdiff_t>(t) * d + c], head.offsets[c]);
  }
}

void PagePrediction::to_model_space(int layer, int kv_head, Side side, std::int32_t* values) {
  const int d = plan_.geometry.dim(layer);
  rotate_units(values, kPageTokens, d, order_of(plan_.head(layer, kv_head).side(side), d));
  if (side == Side::value) return;
  turns_.prepare(predictor_.layers[layer].turns, page_ * kPageTokens);
  turns_.turn_back(values, d);
}

void PagePrediction::from_model_space(int layer, int kv_head, Side side, std::int32_t* values) {
  const int d = plan_.geometry.dim(layer);
  if (side == Side::key) {
    turns_.prepare(predictor_.layers[layer].turns, page_ * kPageTokens);
    turns_.turn(values, d);
  }
  rotate_units(values, kPageTokens, d, order_of(plan_.head(layer, kv_head).side(side), d));
}

}  // namespace kvant
