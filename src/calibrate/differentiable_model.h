// DifferentiableModel: the parts of a transformer on a whole context in F32, each with its derivative. It
// runs on the CPU, or as graphs on a device.
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
  // Sets the number of tokens of the following contexts.
  virtual Status begin(int n_rows) = 0;
  // x [n_rows, n_embd]: the residual stream before the layer, replaced by that after it.
  virtual Status forward(int layer, MatrixView<float> x) = 0;
  // x: the input of forward(). gradient: derivatives by its output, replaced by those by its input. The
  // result is valid until the next call.
  virtual Result<const LayerGradient*> backward(int layer, MatrixView<const float> x,
                                                MatrixView<float> gradient) = 0;
  virtual VocabularyProducts& vocabulary() = 0;
};

// Whether every step of every layer has a derivative here.
bool has_known_layers(const ModelParts& model);

// For contexts of n_rows tokens on the CPU: the number of layers that are not recomputed in the backward
// pass, and the bytes needed in addition to the model.
int layers_kept(const Hparams& hparams, int n_rows);
std::int64_t gradient_bytes(const Hparams& hparams, int n_rows);

// Runs on the CPU. The model must have known layers and outlive it. Results don't depend on the number of
// threads. precision: of products with weights in the backward pass, and of those with the vocabulary.
std::unique_ptr<DifferentiableModel> make_host_model(const ModelParts& model, int n_threads,
                                                     GemmPrecision precision = fastest_gemm_precision());

}  // namespace kvant
