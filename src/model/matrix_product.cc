#include "model/matrix_product.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>

namespace kvant {
namespace {

// Inputs that are summed at a time: a packed weight panel stays in the first-level cache. A multiple of every
// ggml type's block.
constexpr int kBlock = 256;
constexpr int kMinGroupPanels = 8;  // row panels for which packing a weight panel again is worth it

bool lies_plain(const ggml_tensor* weight) {
  return weight->buffer != nullptr && ggml_backend_buffer_is_host(weight->buffer);
}

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

}  // namespace

MatrixProduct::MatrixProduct(int n_threads, const GemmKernel& kernel) : kernel_(kernel), scratch_(n_threads) {
  for (Scratch& s : scratch_) {
    s.expanded.resize(static_cast<std::size_t>(kernel.outputs) * kBlock);
    s.panel.resize(static_cast<std::size_t>(kernel.outputs) * kBlock);
    s.tile.resize(static_cast<std::size_t>(kernel.outputs) * kernel.rows);
  }
}

ggml_tensor* MatrixProduct::multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
  if (x->ne[1] < kGemmRows || !lies_plain(weight)) return ggml_mul_mat(context, weight, x);
  const std::size_t packed = static_cast<std::size_t>(x->ne[0]) * (x->ne[1] + kernel_.rows);
  if (rows_.size() < packed) rows_.resize(packed);
  ggml_tensor* sources[] = {weight, x};
  return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, sources, 2, gemm_op,
                        GGML_N_TASKS_MAX, this);
}

void MatrixProduct::gemm_op(ggml_tensor* y, int thread, int n_threads, void* self) {
  auto* product = static_cast<MatrixProduct*>(self);
  Team team(thread, n_threads, product->team_);
  product->gemm(y, team);
}

void MatrixProduct::gemm(ggml_tensor* y, Team& team) {
  const int row_panels = ceil_div(static_cast<int>(y->ne[1]), kernel_.rows);
  const int output_panels = ceil_div(static_cast<int>(y->ne[0]), kernel_.outputs);
  if (team.index() == 0) items_.reset();
  for (int panel = team.index(); panel < row_panels; panel += team.size()) pack_rows(y->src[1], panel);
  team.barrier();
  // Few outputs for many threads: cut the rows, too.
  const int groups =
      std::clamp(ceil_div(4 * team.size(), output_panels), 1, ceil_div(row_panels, kMinGroupPanels));
  const int group_panels = ceil_div(row_panels, groups);
  // ggml's own barrier ends the op: nobody packs the next rows before the last item is done.
  for (int item = items_.take(); item < output_panels * groups; item = items_.take()) {
    const int first = item % groups * group_panels;
    multiply_panel(y, item / groups, first, std::min(row_panels, first + group_panels), team.index());
  }
}

void MatrixProduct::pack_rows(const ggml_tensor* x, int row_panel) {
  const int n_in = static_cast<int>(x->ne[0]);
  const int n_rows = static_cast<int>(x->ne[1]);
  const std::ptrdiff_t padded_rows =
      static_cast<std::ptrdiff_t>(ceil_div(n_rows, kernel_.rows)) * kernel_.rows;
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(x->nb[1] / sizeof(float));
  const int first_row = row_panel * kernel_.rows;
  const float* source = static_cast<const float*>(x->data) + first_row * stride;
  for (int i = 0; i < n_in; i += kBlock) {
    const int n = std::min(kBlock, n_in - i);
    pack_panel(source + i, stride, std::min(kernel_.rows, n_rows - first_row), n, kernel_.rows,
               rows_.data() + i * padded_rows + static_cast<std::ptrdiff_t>(first_row) * n);
  }
}

// Outputs of one panel for the rows of panels [first_row_panel, last_row_panel).
void MatrixProduct::multiply_panel(ggml_tensor* y, int output_panel, int first_row_panel, int last_row_panel,
                                   int thread) {
  const ggml_tensor* weight = y->src[0];
  Scratch& scratch = scratch_[thread];
  const int n_in = static_cast<int>(weight->ne[0]);
  const int n_out = static_cast<int>(y->ne[0]);
  const int n_rows = static_cast<int>(y->ne[1]);
  const std::ptrdiff_t padded_rows =
      static_cast<std::ptrdiff_t>(ceil_div(n_rows, kernel_.rows)) * kernel_.rows;
  const int first_output = output_panel * kernel_.outputs;
  const int n_outputs = std::min(kernel_.outputs, n_out - first_output);
  for (int i = 0; i < n_in; i += kBlock) {
    const int n = std::min(kBlock, n_in - i);
    pack_weight(weight, first_output, n_outputs, i, n, scratch);
    for (int panel = first_row_panel; panel < last_row_panel; ++panel) {
      const int first_row = panel * kernel_.rows;
      const int valid_rows = std::min(kernel_.rows, n_rows - first_row);
      const float* x = rows_.data() + i * padded_rows + static_cast<std::ptrdiff_t>(first_row) * n;
      float* out =
          static_cast<float*>(y->data) + static_cast<std::ptrdiff_t>(first_row) * n_out + first_output;
      if (valid_rows == kernel_.rows && n_outputs == kernel_.outputs) {
        kernel_.run(n, x, scratch.panel.data(), out, n_out, i > 0);
        continue;
      }
      kernel_.run(n, x, scratch.panel.data(), scratch.tile.data(), kernel_.outputs, false);
      for (int r = 0; r < valid_rows; ++r) {
        for (int o = 0; o < n_outputs; ++o) {
          float& sum = out[static_cast<std::ptrdiff_t>(r) * n_out + o];
          sum = (i > 0 ? sum : 0.0F) + scratch.tile[r * kernel_.outputs + o];
        }
      }
    }
  }
}

// Inputs [first_input, first_input + n) of weight rows [first, first + count) into scratch.panel.
void MatrixProduct::pack_weight(const ggml_tensor* weight, int first, int count, int first_input, int n,
                                Scratch& scratch) const {
  const char* bytes = static_cast<const char*>(weight->data) + first * weight->nb[1] +
                      ggml_row_size(weight->type, first_input);
  if (weight->type == GGML_TYPE_F32) {
    pack_panel(reinterpret_cast<const float*>(bytes),
               static_cast<std::ptrdiff_t>(weight->nb[1] / sizeof(float)), count, n, kernel_.outputs,
               scratch.panel.data());
    return;
  }
  const auto to_float = ggml_get_type_traits(weight->type)->to_float;
  for (int r = 0; r < count; ++r)
    to_float(bytes + r * weight->nb[1], scratch.expanded.data() + r * kBlock, n);
  pack_panel(scratch.expanded.data(), kBlock, count, n, kernel_.outputs, scratch.panel.data());
}

}  // namespace kvant
