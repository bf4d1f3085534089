// VocabularyProducts: rows times the weights of a model's output, some words at a time, and the way back.
#pragma once

#include <memory>

#include "base/matrix_view.h"
#include "base/result.h"
#include "base/team.h"
#include "model/model_parts.h"

namespace kvant {

class VocabularyProducts {
 public:
  virtual ~VocabularyProducts() = default;

  // x [n, n_embd]: the rows of all that follows; it outlives that. Nothing has come back yet.
  virtual Status begin(MatrixView<const float> x) = 0;
  // Turns to the words [first, first + n). Every thread of a team calls it.
  virtual void take(int first, int n, Team& team) = 0;
  // out [some rows, n], from row `first` on: x W^T, W [n, n_embd] the words' weights.
  virtual void multiply(int first, MatrixView<float> out) const = 0;
  // derivative [some rows, n], from row `first` on: derivative W is added to what came back. Once for a row.
  virtual void multiply_back(int first, MatrixView<const float> derivative) = 0;
  // Ends the words that rows came back by. Every thread of a team calls it.
  virtual void give_back(Team& team) = 0;
  // What came back, into gradient [n, n_embd]. An error: of any call since begin().
  virtual Status finish(MatrixView<float> gradient) = 0;
};

// On the CPU.
std::unique_ptr<VocabularyProducts> make_host_vocabulary(const ModelParts& model);

}  // namespace kvant
