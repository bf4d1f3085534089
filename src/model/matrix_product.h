// Matrix products of a model's graph: y = W x for every row of a batch.
#pragma once

#include <memory>
#include <vector>

#include "base/team.h"

struct ggml_context;
struct ggml_tensor;

namespace kvant {

// Adds matrix products to graphs. Small batches go to ggml's own product, which reads quantized weights as
// they are. Batches of at least kGemmRows rows go to a BLAS in F32, weights being expanded block by block:
// for plain types that is faster than ggml's product and does not round the activations. There, tiles of
// kTileRows rows are multiplied on their own, so a row's result depends on its place in the tile only, and
// prompts cut at multiples of kTileRows give the same bits whatever the chunk.
class MatrixProduct {
 public:
  static constexpr int kGemmRows = 32;
  static constexpr int kTileRows = 128;

  explicit MatrixProduct(int n_threads);
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  // weight [n_in, n_out] of any type, x F32 [n_in, n_rows] -> F32 [n_out, n_rows]. The object must outlive
  // the graph, whose threads share it.
  ggml_tensor* multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);

 private:
  static void gemm_op(ggml_tensor* y, int thread, int n_threads, void* self);
  void gemm(ggml_tensor* y, Team& team);
  void reserve_scratch(std::int64_t n_in);

  TeamState team_;
  std::vector<std::vector<float>> scratch_;  // [n_threads]: an expanded block of weight rows
};

}  // namespace kvant
