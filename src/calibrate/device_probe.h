// DeviceProbe: what K or V of one layer in a recipe's probe format do to a model's predictions, all else
// exact.
//
// It computes in F32 (device_model.h). An engine on a device rounds activations to 8 bits, or to half
// precision: any change of one layer then rounds all that follows anew, which costs hundreds of times what is
// to be measured.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/device_model.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

class DeviceProbe {
 public:
  // Runs the model on `tokens`, and keeps what layers [0, n_layers) got and stored: these can be probed. The
  // predictions of the tokens' second half count, of its end where they are too many to keep. Errors: the
  // model's.
  static Result<std::unique_ptr<DeviceProbe>> make(DeviceModel& model, const Geometry& geometry,
                                                   std::vector<std::int32_t> tokens, int n_layers,
                                                   int n_threads);

  // Mean KL divergence of the predictions, in nats, where a layer's side is read as sealed pages hold it: all
  // heads in the recipe's probe format, behind its transforms, with its sink. known: what these need.
  Result<double> divergence(const Recipe& recipe, const Constants& known, int layer, Side side);

 private:
  struct Layer {
    std::vector<float> input;  // [n_rows, n_embd]
    StoredRows stored;
  };

  DeviceProbe(DeviceModel& model, const Geometry& geometry, std::vector<std::int32_t> tokens, int n_threads);
  int n_rows() const { return static_cast<int>(tokens_.size()); }
  MatrixView<float> rows(std::vector<float>& x) const;
  Status run(int n_layers);
  Status finish(int layer, std::vector<float>& x, std::vector<float>& logits);
  std::vector<float> sealed(const Recipe& recipe, const Constants& known, int layer, Side side) const;

  DeviceModel& model_;
  const Geometry geometry_;
  std::vector<std::int32_t> tokens_;
  int n_threads_;
  int n_scored_;
  std::vector<Layer> layers_;
  std::vector<float> expected_;  // logits [n_scored, n_vocab]
};

}  // namespace kvant
