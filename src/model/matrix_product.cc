#include "model/matrix_product.h"

#include <cblas.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>

namespace kvant {
namespace {

constexpr int kBlockOutputs = 96;  // weight rows in one piece of work
constexpr int kExpandedTiles = 4;  // row tiles that share one expansion of a weight block

bool lies_plain(const ggml_tensor* weight) {
  return weight->buffer != nullptr && ggml_backend_buffer_is_host(weight->buffer);
}

// Rows [first, first + n) of `weight` as F32, in `scratch` unless they are F32 already.
const float* expanded_rows(const ggml_tensor* weight, int first, int n, std::vector<float>& scratch) {
  const char* rows = static_cast<const char*>(weight->data) + first * weight->nb[1];
  if (weight->type == GGML_TYPE_F32) return reinterpret_cast<const float*>(rows);
  const auto to_float = ggml_get_type_traits(weight->type)->to_float;
  for (int r = 0; r < n; ++r)
    to_float(rows + r * weight->nb[1], scratch.data() + r * weight->ne[0], weight->ne[0]);
  return scratch.data();
}

}  // namespace

MatrixProduct::MatrixProduct(int n_threads) : scratch_(n_threads) {
  openblas_set_num_threads(1);  // ggml's threads call it side by side
}

ggml_tensor* MatrixProduct::multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
  if (x->ne[1] < kGemmRows || !lies_plain(weight)) return ggml_mul_mat(context, weight, x);
  if (weight->type != GGML_TYPE_F32) reserve_scratch(weight->ne[0]);
  ggml_tensor* sources[] = {weight, x};
  return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, sources, 2, gemm_op,
                        GGML_N_TASKS_MAX, this);
}

// Now: an exception in one of ggml's threads would end the program.
void MatrixProduct::reserve_scratch(std::int64_t n_in) {
  const auto size = static_cast<std::size_t>(kBlockOutputs * n_in);
  for (std::vector<float>& scratch : scratch_)
    if (scratch.size() < size) scratch.resize(size);
}

void MatrixProduct::gemm_op(ggml_tensor* y, int thread, int n_threads, void* self) {
  auto* product = static_cast<MatrixProduct*>(self);
  Team team(thread, n_threads, product->team_);
  product->gemm(y, team);
}

void MatrixProduct::gemm(ggml_tensor* y, Team& team) {
  const ggml_tensor* weight = y->src[0];
  const ggml_tensor* x = y->src[1];
  const int n_in = static_cast<int>(weight->ne[0]);
  const int n_out = static_cast<int>(weight->ne[1]);
  const int n_rows = static_cast<int>(x->ne[1]);
  const int item_rows = kTileRows * (weight->type == GGML_TYPE_F32 ? 1 : kExpandedTiles);
  const int n_row_items = (n_rows + item_rows - 1) / item_rows;
  const int n_blocks = (n_out + kBlockOutputs - 1) / kBlockOutputs;
  const int x_stride = static_cast<int>(x->nb[1] / sizeof(float));
  team.for_each(n_blocks * n_row_items, [&](int item) {
    const int output = item / n_row_items * kBlockOutputs;
    const int n = std::min(kBlockOutputs, n_out - output);
    const float* w = expanded_rows(weight, output, n, scratch_[team.index()]);
    const int first = item % n_row_items * item_rows;
    for (int row = first; row < std::min(n_rows, first + item_rows); row += kTileRows) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, std::min(kTileRows, n_rows - row), n, n_in, 1.0F,
                  static_cast<const float*>(x->data) + static_cast<std::ptrdiff_t>(row) * x_stride, x_stride,
                  w, n_in, 0.0F,
                  static_cast<float*>(y->data) + static_cast<std::ptrdiff_t>(row) * n_out + output, n_out);
    }
  });
}

}  // namespace kvant
