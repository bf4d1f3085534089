// Matrix products of a model's graph: y = W x for every row of a batch.
#pragma once

#include <vector>

#include "base/team.h"
#include "model/gemm_kernel.h"

struct ggml_context;
struct ggml_tensor;

namespace kvant {

// Adds matrix products to graphs. Small batches go to ggml's own product, which reads quantized weights as
// they are. Batches of at least kGemmRows rows are multiplied in F32, weights being expanded panel by panel:
// for types without a repacked layout that is faster, and activations are not rounded. There a row's result
// does not depend on the other rows, their number or the number of threads: every chunk size gives the same
// bits.
class MatrixProduct {
 public:
  static constexpr int kGemmRows = 32;

  // kernel: one of gemm_kernels().
  explicit MatrixProduct(int n_threads, const GemmKernel& kernel = gemm_kernels().front());
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  // weight [n_in, n_out] of any type, x F32 [n_in, n_rows] -> F32 [n_out, n_rows]. The object must outlive
  // the graph, whose threads share it.
  ggml_tensor* multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);

 private:
  struct Scratch {                // of one thread
    std::vector<float> expanded;  // [kernel_.outputs][block]: rows of the weight as F32
    std::vector<float> panel;     // [block][kernel_.outputs]: the same, packed
    std::vector<float> tile;      // [kernel_.rows][kernel_.outputs]: of y, at its edges
  };

  static void gemm_op(ggml_tensor* y, int thread, int n_threads, void* self);
  void gemm(ggml_tensor* y, Team& team);
  void pack_rows(const ggml_tensor* x, int row_panel);
  void multiply_panel(ggml_tensor* y, int output_panel, int first_row_panel, int last_row_panel, int thread);
  void pack_weight(const ggml_tensor* weight, int first, int count, int first_input, int n,
                   Scratch& scratch) const;

  const GemmKernel& kernel_;
  TeamState team_;
  WorkCounter items_;
  std::vector<float>
      rows_;  // x in panels of kernel_.rows rows: [n_in blocks][row panels][block][kernel_.rows]
  std::vector<Scratch> scratch_;  // [n_threads]
};

}  // namespace kvant
