// Predicts the values of a page from known pages of the same 128 tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "base/page_size.h"
#include "compact/model_space.h"
#include "compact/predictor.h"

namespace kvant {

// Holds the known values of a layer's page as inputs (predictor.h), [kPageTokens, KV heads * d] of K and of
// V.
struct KnownLayer {
  std::vector<std::int16_t> k, v;
  std::vector<std::int16_t>& side(Side s) { return s == Side::key ? k : v; }
};

// Predicts the entries of one group of layers, one page after another.
class PagePrediction {
 public:
  // Plan and predictor must outlive the prediction.
  PagePrediction(const Plan& plan, const Predictor& predictor);

  // Begins with the first layer of a page.
  void begin(int page);
  // Goes on to `layer`. From here on, the known values of layer `before` serve as inputs.
  void begin_layer(int before, int layer);
  // Predicts the page of a head and side of the current layer in the space of stored values. `expected` is
  // [kPageTokens, d], in units.
  void predict(int kv_head, Side side, std::int32_t* expected);
  // Adds the actual values [kPageTokens, d], in units, and overwrites them. A side that is never added counts
  // as 0.
  void tell(int kv_head, Side side, std::int32_t* values);

  // Transforms values without clamping the inputs, for learning. The model's space has neither Hadamard
  // rotation nor RoPE.
  void to_model_space(int layer, int kv_head, Side side, std::int32_t* values);
  void from_model_space(int layer, int kv_head, Side side, std::int32_t* values);

 private:
  void gather(const HeadInputs& inputs);

  const Plan& plan_;
  const Predictor& predictor_;
  int page_ = 0, before_ = -1, layer_ = 0;
  KnownLayer known_, known_before_;
  PageTurns turns_;
  std::vector<std::int16_t> inputs_;  // [kPageTokens, n]
};

// Returns the input that a value in the model's space gives.
inline std::int16_t input_of(std::int32_t units, std::int32_t offset) {
  const std::int32_t x = (units - offset) >> kInputShift;
  return static_cast<std::int16_t>(x < -kLargestInput  ? -kLargestInput
                                   : x > kLargestInput ? kLargestInput
                                                       : x);
}

}  // namespace kvant
