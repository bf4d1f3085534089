// Matrix products of large batches in a model's graph: y = W x for every row.
#pragma once

#include <vector>

#include "base/code_gemm.h"
#include "base/team.h"

struct ggml_context;
struct ggml_tensor;

namespace kvant {

// Small batches, and repacked weights, go to ggml's own product, which reads quantized weights as they are.
// Batches of at least kGemmRows rows are multiplied here: weights in simple blocks as their codes, with
// activations in 16 bits, where the processor has instructions for that (code_gemm.h); else, and other
// weights, in F32, weights being dequantized block by block. Either is faster than ggml's product of plain
// (not repacked) weights, which rounds activations to 8 bits, or to F16 for weights of F16. A row's result
// does not depend on the rows beside it, so prompts give the same bits whatever the chunk.
class MatrixProduct {
 public:
  static constexpr int kGemmRows = 32;

  explicit MatrixProduct(int n_threads);
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  static constexpr bool is_batch(int n_rows) { return n_rows >= kGemmRows; }
  // Whether batches are multiplied with this weight here; else that is ggml's business.
  static bool takes(const ggml_tensor* weight);

  // weight [n_in, n_out] of any type, x F32 [n_in, n_rows] -> F32 [n_out, n_rows]; rows of x and of the
  // result may be longer. An op of the graph that `thread` runs; all threads' graphs must have it, on the
  // same memory, and compute it together: it ends when all of it is done. The object must outlive the graphs.
  ggml_tensor* multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x, int thread);

 private:
  struct Member {
    MatrixProduct* product;
    int thread;
    std::vector<float> scratch;  // a dequantized block of weight rows
    CodePanel panel;
  };
  static void gemm_op(ggml_tensor* y, int, int, void* member);
  void multiply_together(ggml_tensor* y, Team& team);
  void multiply_codes(ggml_tensor* y, Team& team);

  TeamState team_;
  std::vector<Member> members_;  // by thread
  const CodeGemm* codes_ = code_gemm();
  NumberRows rows_;  // of the product at hand
};

}  // namespace kvant
