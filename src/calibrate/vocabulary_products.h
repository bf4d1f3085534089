// VocabularyProducts: rows times the weights of a model's output, a block of words at a time, and their
// derivative.
#pragma once

#include <memory>

#include "base/gemm.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "base/team.h"
#include "model/model_parts.h"

namespace kvant {

class VocabularyProducts {
 public:
  virtual ~VocabularyProducts() = default;

  // x [n, n_embd]: the rows of all that follows; it outlives that. Their gradient is zero.
  virtual Status begin(MatrixView<const float> x) = 0;
  // Turns to a block of words, [first, first + n), and says which of the two will be called. Every thread of
  // a team calls it.
  virtual void begin_block(int first, int n, bool multiplies, bool multiplies_back, Team& team) = 0;
  // out [some rows, n], from row `first` on: x W^T, W [n, n_embd] the block's weights.
  virtual void multiply(int first, MatrixView<float> out) const = 0;
  // derivative [some rows, n], from row `first` on, by these products: derivative W joins the rows' gradient
  // when the block ends. Once for a row.
  virtual void multiply_back(int first, MatrixView<const float> derivative) = 0;
  // Ends a block whose rows were multiplied back. Every thread of a team calls it.
  virtual void end_block(Team& team) = 0;
  // The rows' gradient, into gradient [n, n_embd]. An error: of any call since begin().
  virtual Status finish(MatrixView<float> gradient) = 0;
};

// On the CPU.
std::unique_ptr<VocabularyProducts> make_host_vocabulary(const ModelParts& model, GemmPrecision precision);

}  // namespace kvant
