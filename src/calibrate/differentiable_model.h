// DifferentiableModel runs the layers of a transformer on a whole context in F32, and computes the derivative
// of each layer. A differentiable model runs on the CPU, or as graphs on a device.
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

// Only implementations on a device return errors.
class DifferentiableModel {
 public:
  virtual ~DifferentiableModel() = default;

  virtual const ModelParts& parts() const = 0;
  // Sets the number of tokens of the contexts that follow.
  virtual Status begin(int n_rows) = 0;
  // Runs a layer. x [n_rows, n_embd] is the residual stream before the layer, and is replaced by the stream
  // after it.
  virtual Status forward(int layer, MatrixView<float> x) = 0;
  // Computes a layer's derivative. `x` is the input that forward() got. `gradient` holds the derivatives by
  // the layer's output, and receives the derivatives by the layer's input. The result is valid until the next
  // call.
  virtual Result<const LayerGradient*> backward(int layer, MatrixView<const float> x,
                                                MatrixView<float> gradient) = 0;
  virtual VocabularyProducts& vocabulary() = 0;
};

// Returns whether every step of every layer has a derivative.
bool has_known_layers(const ModelParts& model);

// layers_kept() and gradient_bytes() apply to contexts of n_rows tokens on the CPU. layers_kept() returns the
// number of layers that the backward pass need not compute again. gradient_bytes() returns the bytes that are
// needed besides the model.
int layers_kept(const Hparams& hparams, int n_rows);
std::int64_t gradient_bytes(const Hparams& hparams, int n_rows);

// Makes a model on the CPU. `model` must have known layers and outlive the result. Results do not depend on
// the number of threads. `precision` applies to products with weights in the backward pass and to products
// with the vocabulary.
std::unique_ptr<DifferentiableModel> make_host_model(const ModelParts& model, int n_threads,
                                                     GemmPrecision precision = fastest_gemm_precision());

}  // namespace kvant
