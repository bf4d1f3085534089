// Multiplies large batches by matrices in a model's graph: y = W x for every row.
#pragma once

#include <vector>

#include "base/code_gemm.h"
#include "base/team.h"

struct ggml_context;
struct ggml_tensor;

namespace kvant {

// ggml's own product serves small batches and repacked weights; it reads quantized weights as they are.
// Batches of at least kGemmRows rows are multiplied here. Weights in simple blocks are multiplied as codes,
// with activations in 16 bits, if the processor has instructions for that (code_gemm.h). Otherwise weights
// are dequantized block by block and multiplied in F32. Both are faster than ggml's product of plain (not
// repacked) weights, which rounds activations to 8 bits, or to F16 for F16 weights. A row's result does not
// depend on other rows, so prompts give the same bits for any chunk size.
class MatrixProduct {
 public:
  static constexpr int kGemmRows = 32;

  explicit MatrixProduct(int n_threads);
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  static constexpr bool is_batch(int n_rows) { return n_rows >= kGemmRows; }
  // Returns whether batches are multiplied with this weight here. If not, ggml does it.
  static bool takes(const ggml_tensor* weight);

  // Multiplies weight [n_in, n_out] of any type by x F32 [n_in, n_rows], which gives F32 [n_out, n_rows].
  // Rows of x and of the result may be longer. The result is an operation of the graph that `thread` runs.
  // All threads' graphs must contain it, on the same memory, and compute it together; it ends when all of it
  // is done. The object must outlive the graphs.
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
  NumberRows rows_;  // rows of the current product
};

}  // namespace kvant
