// Multiplies large batches by the matrices of a model: y = W x for every row. Prefill spends most of its time
// in these products.
#pragma once

#include <vector>

#include "base/code_gemm.h"
#include "base/team.h"

struct ggml_context;
struct ggml_tensor;

namespace kvant {

// ggml's own product serves small batches and repacked weights, and reads quantized weights as they are.
// MatrixProduct multiplies batches of at least kGemmRows rows. If the processor has the instructions
// (code_gemm.h), weights in simple blocks are multiplied as codes, with activations rounded to 16 bits.
// Otherwise weights are dequantized block by block and multiplied in F32. Both ways are faster than ggml's
// product of plain weights, which rounds activations to 8 bits, or to F16 for F16 weights. A row's bits do
// not depend on other rows, so a prompt gives the same bits with any chunk size.
class MatrixProduct {
 public:
  static constexpr int kGemmRows = 32;

  explicit MatrixProduct(int n_threads);
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  static constexpr bool is_batch(int n_rows) { return n_rows >= kGemmRows; }
  // Returns whether MatrixProduct multiplies batches with this weight. If not, ggml does.
  static bool takes(const ggml_tensor* weight);

  // Multiplies weight [n_in, n_out] of any type by x F32 [n_in, n_rows], with the result F32 [n_out, n_rows].
  // Rows of x and of the result may have a larger stride. The result is an operation of the graph that
  // `thread` runs. The graphs of all threads must contain the operation on the same memory, and all threads
  // compute the operation together. The operation ends when the whole result is written. The object must
  // outlive the graphs.
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
  std::vector<Member> members_;  // one per thread
  const CodeGemm* codes_ = code_gemm();
  NumberRows rows_;  // rounded rows of the current product
};

}  // namespace kvant
