// DifferentiableModel: the parts of a transformer on a whole context, in F32, each with its derivative: on
// the CPU, or as graphs on a device.
#pragma once

#include <cstdint>
#include <memory>

#include "base/gemm.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "calibrate/layer_gradient.h"
#include "calibrate/vocabulary_products.h"
#include "model/model_parts.h"

namespace kvant {

// Errors of all calls: a device's.
class DifferentiableModel {
 public:
  virtual ~DifferentiableModel() = default;

  virtual const ModelParts& parts() const = 0;
  // What follows is of contexts of n_rows tokens.
  virtual Status begin(int n_rows) = 0;
  // x [n_rows, n_embd]: the residual stream, before and after the layer.
  virtual Status forward(int layer, MatrixView<float> x) = 0;
  // x: what forward() would get. gradient: of a loss by what it would give, becomes that by x. The result is
  // good until the next call.
  virtual Result<const LayerGradient*> backward(int layer, MatrixView<const float> x,
                                                MatrixView<float> gradient) = 0;
  virtual VocabularyProducts& vocabulary() = 0;
};

// Whether every layer has the parts that layers have here, and no others.
bool has_known_layers(const ModelParts& model);

// Of contexts of n_rows tokens, on the CPU: layers of which the way back needs no second way forward, and
// bytes beside the model.
int layers_kept(const Hparams& hparams, int n_rows);
std::int64_t gradient_bytes(const Hparams& hparams, int n_rows);

// On the CPU. The model has known layers, and outlives it. The same for any number of threads. precision: of
// products with weights on the way back, and with the vocabulary's.
std::unique_ptr<DifferentiableModel> make_host_model(const ModelParts& model, int n_threads,
                                                     GemmPrecision precision = fastest_gemm_precision());

}  // namespace kvant
