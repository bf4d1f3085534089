// HeadAttention: exact causal attention of one query head over a context, and its derivative.
//
// Queries come in blocks of a page. The derivative by K and V is split as the cache splits them: what queries
// read of pages before their own, which are sealed then, and what they read of their own page, which is not.
#pragma once

#include <vector>

#include "base/matrix_view.h"
#include "base/page_size.h"

namespace kvant {

struct AttentionShape {
  float scale = 1;    // of scores q.k
  float softcap = 0;  // c > 0: scores become c tanh(score / c)
  int window = 0;     // a query sees so many newest tokens, itself included; 0: all
};

// Of the loss by K and V [n, d]: `sealed` grows, `open` is written, block by block.
struct KvGradients {
  MatrixView<float> sealed_k, sealed_v, open_k, open_v;
  double* score_weights = nullptr;  // [n]: the length of the derivative by each query's sealed scores
};

class HeadAttention {
 public:
  // q, k, v: [n, d].
  HeadAttention(const AttentionShape& shape, MatrixView<const float> q, MatrixView<const float> k,
                MatrixView<const float> v)
      : shape_(shape), q_(q), k_(k), v_(v) {}

  // Queries [128 block, ...): out [their number, d].
  void attend(int block, MatrixView<float> out);
  // gradient: of the loss by their outputs; q_gradient: by themselves, written.
  void attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                   const KvGradients& kv);

 private:
  // Fills weights_ [n_queries, n_keys] and, with a soft cap, slopes_: d capped / d score.
  void weigh(int block);

  AttentionShape shape_;
  MatrixView<const float> q_, k_, v_;
  int first_ = 0, n_queries_ = 0, n_keys_ = 0;  // of the block
  std::vector<float> weights_, slopes_, products_;
};

}  // namespace kvant
