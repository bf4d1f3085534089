#include "model/matrix_product.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>

#include "base/gemm.h"
#include "model/weight_codes.h"

namespace kvant {
namespace {

constexpr int kBlockOutputs = 96;  // weight rows in one piece of work
// A piece of work has this many rows of activations, which share the dequantization of the weight rows.
constexpr int kItemRows = 512;

// For products with codes, a thread rounds kRoundedRows rows at once. If a weight has fewer than kManyPanels
// panels, a piece of work has only kFewPanelsRows rows, and all threads have work.
constexpr int kRoundedRows = 16, kManyPanels = 8, kFewPanelsRows = 128;

std::size_t scratch_size(const ggml_tensor* weight) {
  return static_cast<std::size_t>(kBlockOutputs * weight->ne[0]);
}

// Returns rows [first, first + n) of `weight` as F32. The rows are in `scratch` unless the weight is F32.
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
  // Memory is allocated here, because an exception in a thread of the team would end the program.
  if (codes_ != nullptr && has_code_blocks(weight)) {
    make_room(members_[thread].panel, static_cast<int>(weight->ne[0]));
    make_room(rows_, static_cast<int>(x->ne[1]), static_cast<int>(x->ne[0]));
  } else if (weight->type != GGML_TYPE_F32) {
    members_[thread].scratch.resize(std::max(members_[thread].scratch.size(), scratch_size(weight)));
  }
  ggml_tensor* sources[] = {weight, x};
  return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, sources, 2, gemm_op, 1,
                        &members_[thread]);
}

void MatrixProduct::gemm_op(ggml_tensor* y, int, int, void* data) {
  const auto* member = static_cast<const Member*>(data);
  MatrixProduct& product = *member->product;
  Team team(member->thread, static_cast<int>(product.members_.size()), product.team_);
  if (product.codes_ != nullptr && has_code_blocks(y->src[0])) {
    product.multiply_codes(y, team);
  } else {
    product.multiply_together(y, team);
  }
}

// All threads round the rows together. After that, each thread takes panels of the weight.
void MatrixProduct::multiply_codes(ggml_tensor* y, Team& team) {
  const ggml_tensor* weight = y->src[0];
  const ggml_tensor* x = y->src[1];
  const int n_in = static_cast<int>(weight->ne[0]);
  const int n_out = static_cast<int>(weight->ne[1]);
  const int n_rows = static_cast<int>(x->ne[1]);
  const auto x_stride = static_cast<std::ptrdiff_t>(x->nb[1] / sizeof(float));
  const auto y_stride = static_cast<std::ptrdiff_t>(y->nb[1] / sizeof(float));
  const auto row_items = [&](int rows) { return (n_rows + rows - 1) / rows; };
  team.for_each(row_items(kRoundedRows), [&](int item) {
    const int first = item * kRoundedRows, end = std::min(first + kRoundedRows, n_rows);
    codes_->round_rows(static_cast<const float*>(x->data), x_stride, first, end, n_in, rows_.view());
  });
  const int n_panels = (n_out + kCodePanel - 1) / kCodePanel;
  const int item_rows = n_panels < kManyPanels ? kFewPanelsRows : kItemRows;
  const int n_row_items = row_items(item_rows);
  team.for_each(n_panels * n_row_items, [&](int item) {
    const int output = item / n_row_items * kCodePanel, n = std::min(kCodePanel, n_out - output);
    const int first = item % n_row_items * item_rows;
    CodePanel& panel = members_[team.index()].panel;
    fill_panel(weight, output, n, panel);
    codes_->multiply(rows_.view(), first, std::min(first + item_rows, n_rows), n_in, panel.view(), n,
                     static_cast<float*>(y->data) + output, y_stride);
  });
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
