// The end of a model, in F32: from the residual stream to logits.
#pragma once

#include "base/matrix_view.h"
#include "base/result.h"
#include "calibrate/vocabulary_products.h"
#include "model/model_parts.h"

namespace kvant {

// x [n, n_embd]: the residual stream after the last layer; logits [n, n_vocab]. products: of the model.
// Errors: theirs.
Status f32_logits(const ModelParts& model, VocabularyProducts& products, MatrixView<const float> x,
                  int n_threads, MatrixView<float> logits);

}  // namespace kvant
