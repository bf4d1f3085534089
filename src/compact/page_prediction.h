// The prediction of a page's values from pages of the same tokens that are known already.
#pragma once

#include <cstdint>
#include <vector>

#include "base/page_size.h"
#include "compact/model_space.h"
#include "compact/predictor.h"

namespace kvant {

// What is known of a layer's page, as inputs (predictor.h): [kPageTokens, KV heads * d] of K and of V.
struct KnownLayer {
  std::vector<std::int16_t> k, v;
  std::vector<std::int16_t>& side(Side s) { return s == Side::key ? k : v; }
};

// Of the entries of one group of layers, one page after another.
class PagePrediction {
 public:
  // Both outlive it.
  PagePrediction(const Plan& plan, const Predictor& predictor);

  // Begins with a page's first layer.
  void begin(int page);
  // Goes on with a layer: from here on, what was known of the one before is what predicts.
  void begin_layer(int before, int layer);
  // The page of a head and side of that layer, in the space of stored values, in units: [kPageTokens, d].
  void predict(int kv_head, Side side, std::int32_t* expected);
  // Tells what it was: values [kPageTokens, d] in units, which are overwritten. Sides that are never told
  // count as 0.
  void tell(int kv_head, Side side, std::int32_t* values);

  // The same without the limits of inputs, for those who learn: values in the model's space.
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

// The input of a value in the model's space.
inline std::int16_t input_of(std::int32_t units, std::int32_t offset) {
  const std::int32_t x = (units - offset) >> kInputShift;
  return static_cast<std::int16_t>(x < -kLargestInput  ? -kLargestInput
                                   : x > kLargestInput ? kLargestInput
                                                       : x);
}

}  // namespace kvant
