// HeadAttention: exact causal attention of one query head over a context, its derivative, and what errors
// of K or V on sealed pages do.
//
// Queries come in blocks of a page: pages before their own are sealed when they read them, their own is not.
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
  int window = 0;     // a query sees so many newest tokens, itself included; 0: all
};
AttentionShape attention_shape(const Hparams& hparams, int layer);

// Of the loss by K and V [n, d]: they grow, block by block.
struct KvGradients {
  MatrixView<float> k, v;
  double* score_weights = nullptr;  // [n]: the length of the derivative by each query's sealed scores
};

// What pages hold in place of a side of a KV head, [n, d] tokens of each, for add_effects() of all heads that
// read it.
PackedMatrix packed_pages(Side side, MatrixView<const float> held, MatrixView<const float> exact);

class HeadAttention {
 public:
  // q, k, v: [n, d].
  HeadAttention(const AttentionShape& shape, MatrixView<const float> q, MatrixView<const float> k,
                MatrixView<const float> v)
      : shape_(shape), q_(q), k_(k), v_(v) {}

  MatrixView<const float> queries() const { return q_; }
  // Queries [128 block, ...): out [their number, d].
  void attend(int block, MatrixView<float> out);
  // gradient: of the loss by their outputs; q_gradient: by themselves, written.
  void attend_back(int block, MatrixView<const float> gradient, MatrixView<float> q_gradient,
                   const KvGradients& kv);

  // Turns to the block's queries, with that gradient, which is to outlive what follows.
  void look_at(int block, MatrixView<const float> gradient);
  // Adds to effects [their number] what it does to the loss where pages before the block's own hold `pages`
  // (at least 128 block tokens) in place of that side: gradient . (outputs with these - outputs).
  void add_effects(Side side, const PackedMatrix& pages, double* effects);

 private:
  void turn_to(int block);
  // [n_queries, n_keys]. With a soft cap, slopes_ becomes d capped / d score.
  void weigh();
  // Likewise, from the products with keys of pages before the block's own.
  void weigh_products(std::vector<float>& weights);

  AttentionShape shape_;
  MatrixView<const float> q_, k_, v_;
  int first_ = 0, n_queries_ = 0, n_keys_ = 0;  // of the block
  MatrixView<const float> gradient_;            // of the queries looked at
  std::vector<float> weights_, slopes_, products_;
  std::vector<float> changed_;  // weights with errors of keys, or products with those of values
};

}  // namespace kvant
