// VocabularyProducts: products of rows with the weights of a model's output and their derivatives, a block of
// words at a time.
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

  // Sets the rows x [n, n_embd] of the following calls, which they must outlive, and their gradient to zero.
  virtual Status begin(MatrixView<const float> x) = 0;
  // Selects a block of words, [first, first + n), and announces which of the two products follow. Every
  // thread of a team must call it.
  virtual void begin_block(int first, int n, bool multiplies, bool multiplies_back, Team& team) = 0;
  // Computes out [some rows, n], from row `first` on: x W^T, where W [n, n_embd] are the block's weights.
  virtual void multiply(int first, MatrixView<float> out) const = 0;
  // derivative [some rows, n], from row `first` on: derivatives by these products. Adds derivative W to the
  // rows' gradient when the block ends. Call it once per row.
  virtual void multiply_back(int first, MatrixView<const float> derivative) = 0;
  // Ends a block with multiply_back(). Every thread of a team must call it.
  virtual void end_block(Team& team) = 0;
  // Copies the rows' gradient into gradient [n, n_embd]. Returns the first error since begin().
  virtual Status finish(MatrixView<float> gradient) = 0;
};

// Computes on the CPU.
std::unique_ptr<VocabularyProducts> make_host_vocabulary(const ModelParts& model, GemmPrecision precision);

}  // namespace kvant
