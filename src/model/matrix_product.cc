#include "model/matrix_product.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>

#include "base/gemm.h"

namespace kvant {
namespace {

constexpr int kBlockOutputs = 96;  // weight rows in one piece of work
constexpr int kItemRows =
    512;  // rows of activations in one, which share the dequantization of the weight rows

std::size_t scratch_size(const ggml_tensor* weight) {
  return static_cast<std::size_t>(kBlockOutputs * weight->ne[0]);
}

// Rows [first, first + n) of `weight` as F32, in `scratch` unless they are F32 already.
const float* dequantized_rows(const ggml_tensor* weight, int first, int n, std::vector<float>& scratch) {
  const char* rows = static_cast<const char*>(weight->data) + first * weight->nb[1];
  if (weight->type == GGML_TYPE_F32) return reinterpret_cast<const float*>(rows);
  const auto to_float = ggml_get_type_traits(weight->type)->to_float;
  for (int r = 0; r < n; ++r)
    to_float(rows + r * weight->nb[1], scratch.data() + r * weight->ne[0], weight->ne[0]);
  return scratch.data();
}

}  // namespace

MatrixProduct::MatrixProduct(int n_threads) {
  for (int i = 0; i < n_threads; ++i) members_.push_back({this, i, {}});
}

bool MatrixProduct::takes(const ggml_tensor* weight) {
  return weight->buffer != nullptr && ggml_backend_buffer_is_host(weight->buffer);
}

ggml_tensor* MatrixProduct::multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x, int thread) {
  // Now: an exception in one of the threads would end the program.
  if (weight->type != GGML_TYPE_F32)
    members_[thread].scratch.resize(std::max(members_[thread].scratch.size(), scratch_size(weight)));
  ggml_tensor* sources[] = {weight, x};
  return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, sources, 2, gemm_op, 1,
                        &members_[thread]);
}

void MatrixProduct::gemm_op(ggml_tensor* y, int, int, void* data) {
  const auto* member = static_cast<const Member*>(data);
  MatrixProduct& product = *member->product;
  Team team(member->thread, static_cast<int>(product.members_.size()), product.team_);
  product.multiply_together(y, team);
}

void MatrixProduct::multiply_together(ggml_tensor* y, Team& team) {
  const ggml_tensor* weight = y->src[0];
  const ggml_tensor* x = y->src[1];
  const int n_in = static_cast<int>(weight->ne[0]);
  const int n_out = static_cast<int>(weight->ne[1]);
  const int n_rows = static_cast<int>(x->ne[1]);
  const int n_row_items = (n_rows + kItemRows - 1) / kItemRows;
  const int n_blocks = (n_out + kBlockOutputs - 1) / kBlockOutputs;
  const auto x_stride = static_cast<std::ptrdiff_t>(x->nb[1] / sizeof(float));
  const auto y_stride = static_cast<std::ptrdiff_t>(y->nb[1] / sizeof(float));
  team.for_each(n_blocks * n_row_items, [&](int item) {
    const int output = item / n_row_items * kBlockOutputs;
    const int n = std::min(kBlockOutputs, n_out - output);
    const float* w = dequantized_rows(weight, output, n, members_[team.index()].scratch);
    const std::ptrdiff_t first = item % n_row_items * kItemRows;
    const int m = std::min<int>(kItemRows, n_rows - first);
    gemm(m, n, n_in, row_major(static_cast<const float*>(x->data) + first * x_stride, x_stride),
         transposed(w, n_in),
         /*accumulate=*/false, static_cast<float*>(y->data) + first * y_stride + output, y_stride);
  });
}

}  // namespace kvant
