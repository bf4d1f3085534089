// HeadAttention: exact causal attention of one query head over a context, its derivative, and the effects of
// errors of K or V on sealed pages.
//
// Queries come in blocks of a page. The pages before a block's own are sealed when it reads them, its own
// page is not.
#pragma once

#include <vector>

#include "base/gemm.h"
#include "base/geometry.h"
#include "base/matrix_view.h"
#include "base/page_size.h"

namespace kvant {

struct Hparams;

struct AttentionShape {
  float scale = 1;    // of scores q.k
  float softcap = 0;  // c > 0: scores become c tanh(score / c)
  int window = 0;     // a query sees this many newest tokens, including itself; 0: all
};
AttentionShape attention_shape(const Hparams& hparams, int layer);

// Derivatives of the loss by K and V [n, d], accumulated block by block.
struct KvGradients {
  MatrixView<float> k, v;
  double* score_weights = nullptr;  // [n]: norm of the derivative by each query's sealed scores
};

// Prepares pages' contents for add_effects() of all heads that read them: one side of a KV head, as stored
// and exact, [n, d] tokens each.
PackedMatrix packed_pages(Side side, MatrixView<const float> held, MatrixView<const float> exact);

class HeadAttention {
 public:
  // q, k, v: [n, d].
  HeadAttention(const AttentionShape& shape, MatrixView<const float> q, MatrixView<const float> k,
                MatrixView<const float> v)
      : shape_(shape), q_(q), k_(k), v_(v) {}

  MatrixView<const float> queries() const { return q_; }
  // Attends with the block's queries, which start at 128 block: out [their number, d].
  void attend(int block, MatrixView<float> out);
  // gradient: derivative of the loss by their outputs. q_gradient: receives the derivative by the queries.
  void attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                   const KvGradients& kv);

  // Selects the block's queries and their gradient, which must outlive the following calls.
  void look_at(int block, MatrixView<const float> gradient);
  // Adds the effect of errors on the loss to effects [their number], when pages before the block's own
  // contain `pages` (at least 128 block tokens) in place of that side: gradient . (outputs with these -
  // outputs).
  void add_effects(Side side, const PackedMatrix& pages, double* effects);

 private:
  void turn_to(int block);
  // Computes weights [n_queries, n_keys]. With a soft cap, slopes_ becomes d capped / d score.
  void weigh();
  // Turns products with keys of the pages before the block's own into weights.
  void weigh_products(std::vector<float>& weights);

  AttentionShape shape_;
  MatrixView<const float> q_, k_, v_;
  int first_ = 0, n_queries_ = 0, n_keys_ = 0;  // of the current block
  MatrixView<const float> gradient_;            // of the current block's queries
  std::vector<float> weights_, slopes_, products_;
  std::vector<float> changed_;  // weights with errors of keys, or products with errors of values
};

}  // namespace kvant
