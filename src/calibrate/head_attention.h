// HeadAttention computes exact causal attention of one query head over a context. The class also computes the
// derivative, and the effects of errors of K or V on sealed pages.
//
// Queries come in blocks of one page. A block's queries read the pages before their own page in sealed form,
// and their own page in unsealed form.
#pragma once

#include <vector>

#include "base/gemm.h"
#include "base/geometry.h"
#include "base/matrix_view.h"
#include "base/page_size.h"

namespace kvant {

struct Hparams;

struct AttentionShape {
  float scale = 1;    // q.k is multiplied by this
  float softcap = 0;  // if c > 0, scores become c tanh(score / c)
  int window = 0;     // a query reads this many newest tokens, including itself; 0 means all
};
AttentionShape attention_shape(const Hparams& hparams, int layer);

// KvGradients holds the derivatives of the loss by K and V [n, d]. Each block adds to the derivatives.
struct KvGradients {
  MatrixView<float> k, v;
  double* score_weights = nullptr;  // [n], for each query, the norm of the derivative by its sealed scores
};

// Prepares the contents of pages for add_effects(), for all query heads that read them. `held` and `exact`
// [n, d] are one side of a KV head, as stored and unquantized.
PackedMatrix packed_pages(Side side, MatrixView<const float> held, MatrixView<const float> exact);

class HeadAttention {
 public:
  // q, k and v are [n, d].
  HeadAttention(const AttentionShape& shape, MatrixView<const float> q, MatrixView<const float> k,
                MatrixView<const float> v)
      : shape_(shape), q_(q), k_(k), v_(v) {}

  MatrixView<const float> queries() const { return q_; }
  // Attends with the queries of a block, which start at token 128 * block. Writes the outputs to `out`,
  // [queries of the block, d].
  void attend(int block, MatrixView<float> out);
  // Computes the derivative. `gradient` is the derivative of the loss by the block's outputs. q_gradient
  // receives the derivative by the block's queries.
  void attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                   const KvGradients& kv);

  // Selects a block's queries and the gradient of their outputs for add_effects(). `gradient` must outlive
  // the calls of add_effects().
  void look_at(int block, MatrixView<const float> gradient);
  // Adds to `effects` [queries of the block] what errors do to the loss: gradient . (outputs with errors -
  // outputs). `pages` replace one side of the pages before the block's own, and hold at least 128 * block
  // tokens.
  void add_effects(Side side, const PackedMatrix& pages, double* effects);

 private:
  void turn_to(int block);
  // Computes weights [n_queries, n_keys]. With a soft cap, also computes slopes_, the derivatives of capped
  // scores by scores.
  void weigh();
  // Turns products of queries with keys of the pages before the block's own into weights.
  void weigh_products(std::vector<float>& weights);

  AttentionShape shape_;
  MatrixView<const float> q_, k_, v_;
  int first_ = 0, n_queries_ = 0, n_keys_ = 0;  // tokens of the current block
  MatrixView<const float> gradient_;            // the gradient by the current block's outputs
  std::vector<float> weights_, slopes_, products_;
  std::vector<float> changed_;  // weights with errors of keys, or products with errors of values
};

}  // namespace kvant
