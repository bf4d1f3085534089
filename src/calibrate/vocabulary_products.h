// VocabularyProducts multiplies rows by the weights of a model's output, and computes the derivatives, block
// by block of words. Implementations exist for the CPU and for devices.
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

  // Sets the rows x [n, n_embd] that later calls multiply, and sets their gradient to zero. x must outlive
  // these calls.
  virtual Status begin(MatrixView<const float> x) = 0;
  // Selects the block of words [first, first + n), and announces whether multiply() and multiply_back() will
  // follow. Every thread of a team must call begin_block().
  virtual void begin_block(int first, int n, bool multiplies, bool multiplies_back, Team& team) = 0;
  // Computes out [some rows, n] = x W^T for the rows of x from `first` on, where W [n, n_embd] are the
  // block's weights.
  virtual void multiply(int first, MatrixView<float> out) const = 0;
  // Takes the derivative by the products of the rows from `first` on, `derivative` [some rows, n]. At the end
  // of the block, end_block() adds derivative W to the rows' gradient. Call multiply_back() once for each
  // row.
  virtual void multiply_back(int first, MatrixView<const float> derivative) = 0;
  // Ends a block for which multiply_back() was called. Every thread of a team must call end_block().
  virtual void end_block(Team& team) = 0;
  // Copies the rows' gradient to `gradient` [n, n_embd]. Returns the first error since begin().
  virtual Status finish(MatrixView<float> gradient) = 0;
};

// Returns products that the CPU computes.
std::unique_ptr<VocabularyProducts> make_host_vocabulary(const ModelParts& model, GemmPrecision precision);

}  // namespace kvant
