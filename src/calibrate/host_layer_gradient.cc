#include "calibrate/host_layer_gradient.h"

#include <algorithm>
#include <span>

#include "calibrate/principal_directions.h"

namespace kvant {
namespace {

MatrixView<float> allocated(std::vector<float>& values, int rows, int cols) {
  values.resize(static_cast<std::size_t>(rows) * cols);
  return {values.data(), rows, cols};
}

void add(MatrixView<const float> x, MatrixView<float> to) {
  for (int r = 0; r < x.rows; ++r)
    for (int i = 0; i < x.cols; ++i) to.row(r)[i] += x.row(r)[i];
}

}  // namespace

std::int64_t activation_bytes(const Hparams& hparams, int n_rows) {
  const std::int64_t n_q = hparams.n_heads * hparams.head_dim, n_kv = hparams.n_kv_heads * hparams.head_dim;
  const std::int64_t of_row = 2 * (n_q + 2 * n_kv) + n_q + hparams.n_embd + 2 * hparams.n_ff;
  return of_row * n_rows * static_cast<std::int64_t>(sizeof(float));
}

HostLayerGradient::HostLayerGradient(const Hparams& hparams, int layer, const F32Layer& weights,
                                     const RopeTable& rope, int n_rows, LayerWorkspace& workspace,
                                     LayerActivations* kept)
    : h_(hparams),
      w_(weights),
      rope_(rope),
      n_rows_(n_rows),
      shape_(attention_shape(hparams, layer)),
      unit_(hparams.architecture->activation == Activation::gelu ? GatedUnit::gelu : GatedUnit::silu),
      work_(workspace),
      keeps_(kept != nullptr),
      a_(keeps_ ? *kept : workspace.activations) {
  const auto n = static_cast<std::size_t>(n_rows);
  a_.qkv.resize(n * n_qkv());
  if (has_head_norms()) a_.plain_qkv.resize(a_.qkv.size());
  a_.attended.resize(n * n_q());
  a_.middle.resize(n * h_.n_embd);
  a_.gate.resize(n * h_.n_ff);
  a_.up.resize(n * h_.n_ff);
  work_.product.resize(n * h_.n_ff);
  work_.normed.resize(n * h_.n_embd);
  work_.y.resize(n * h_.n_embd);
  work_.dy.resize(n * h_.n_embd);
}

MatrixView<const float> HostLayerGradient::qkv_head(int head) const {
  return {a_.qkv.data() + static_cast<std::ptrdiff_t>(head) * h_.head_dim, n_rows_, h_.head_dim, n_qkv()};
}

MatrixView<const float> HostLayerGradient::stored(int kv_head, Side side) const {
  return qkv_head(h_.n_heads + (side == Side::value ? h_.n_kv_heads : 0) + kv_head);
}

HeadAttention HostLayerGradient::attention(int head) const {
  const int kv_head = head / (h_.n_heads / h_.n_kv_heads);
  return {shape_, qkv_head(head), stored(kv_head, Side::key), stored(kv_head, Side::value)};
}

MatrixView<const float> HostLayerGradient::output_gradient(int head) const {
  return {work_.attended_gradient.data() + static_cast<std::ptrdiff_t>(head) * h_.head_dim, n_rows_,
          h_.head_dim, n_q()};
}

KvGradients HostLayerGradient::kv_gradients(int head) {
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(n_rows_) * h_.head_dim;
  float* first = work_.head_gradients.data() + 2 * size * head;
  return {{first, n_rows_, h_.head_dim},
          {first + size, n_rows_, h_.head_dim},
          work_.score_weights.data() + static_cast<std::ptrdiff_t>(head) * n_rows_};
}

std::vector<double> HostLayerGradient::query_moments(int kv_head) const {
  const int group = h_.n_heads / h_.n_kv_heads;
  std::vector<double> sums(static_cast<std::size_t>(h_.head_dim) * h_.head_dim, 0.0);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const auto weights =
        std::span(work_.score_weights).subspan(static_cast<std::size_t>(head) * n_rows_, n_rows_);
    std::vector<float> memory;
    const MatrixView<float> unturned = allocated(memory, n_rows_, h_.head_dim);
    for (int r = 0; r < n_rows_; ++r) {
      std::copy_n(qkv_head(head).row(r), h_.head_dim, unturned.row(r));
      rope_.turn_back(r, unturned.row(r));
    }
    const std::vector<double> of_head = second_moments(unturned, weights);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_head[i];
  }
  return sums;
}

// --- forward ---

void HostLayerGradient::project(MatrixView<const float> x, int block) {
  std::vector<float> memory;
  const MatrixView<float> normed = allocated(memory, x.rows, h_.n_embd);
  rms_norm(x, w_.attn_norm, h_.norm_epsilon, normed);
  const int n_cols = n_qkv();
  const MatrixView<float> turned = rows(a_.qkv, n_cols, block);
  linear(normed, work_.weight, w_.qkv_bias, turned);
  if (has_head_norms())
    std::copy_n(turned.data, static_cast<std::ptrdiff_t>(turned.rows) * n_cols,
                rows(a_.plain_qkv, n_cols, block).data);
  for (int head = 0; head < h_.n_heads + h_.n_kv_heads; ++head) {
    const std::vector<float>& norm = head < h_.n_heads ? w_.q_norm : w_.k_norm;
    const MatrixView<float> of_head(turned.data + static_cast<std::ptrdiff_t>(head) * h_.head_dim, x.rows,
                                    h_.head_dim, n_cols);
    if (!norm.empty()) rms_norm(of_head, norm, h_.norm_epsilon, of_head);
    for (int r = 0; r < x.rows; ++r) rope_.turn(block * kPageTokens + r, of_head.row(r));
  }
}

void HostLayerGradient::add_attended(MatrixView<float> x, int block) {
  const MatrixView<float> y = rows(work_.y, h_.n_embd, block);
  linear(rows(a_.attended, n_q(), block), work_.weight, w_.out_bias, y);
  if (!w_.attn_post_norm.empty()) rms_norm(y, w_.attn_post_norm, h_.norm_epsilon, y);
  add(y, x);
}

void HostLayerGradient::attend(Team& team) {
  team.for_each(h_.n_heads * n_blocks(), [&](int item) {
    const int head = item % h_.n_heads, block = n_blocks() - 1 - item / h_.n_heads;  // the longest first
    MatrixView<float> out = rows(a_.attended, n_q(), block);
    out.data += static_cast<std::ptrdiff_t>(head) * h_.head_dim;
    out.cols = h_.head_dim;
    attention(head).attend(block, out);
  });
}

// Up to the two products that the feed-forward network begins with, in that precision; x becomes the residual
// stream there.
void HostLayerGradient::begin(MatrixView<float> x, GemmPrecision of_network, Team& team) {
  const auto of_weight = [&](const std::vector<float>& weight) {
    Multiplier by = forward_of(weight, h_.n_ff, h_.n_embd);
    by.precision = of_network;
    return by;
  };
  multiply_by(forward_of(w_.qkv, n_qkv(), h_.n_embd), team, [&](int b) { project(part(x, b), b); });
  attend(team);
  multiply_by(forward_of(w_.attn_out, h_.n_embd, n_q()), team, [&](int b) {
    add_attended(part(x, b), b);
    rms_norm(part(x, b), w_.ffn_norm, h_.norm_epsilon, rows(work_.normed, h_.n_embd, b));
  });
  multiply_by(of_weight(w_.gate), team, [&](int b) {
    linear(rows(work_.normed, h_.n_embd, b), work_.weight, w_.gate_bias, rows(a_.gate, h_.n_ff, b));
  });
  multiply_by(of_weight(w_.up), team, [&](int b) {
    linear(rows(work_.normed, h_.n_embd, b), work_.weight, w_.up_bias, rows(a_.up, h_.n_ff, b));
  });
}

// What the feed-forward network gives, [n_rows, n_embd].
void HostLayerGradient::find_y(Team& team) {
  multiply_by(forward_of(w_.down, h_.n_embd, h_.n_ff), team, [&](int b) {
    const MatrixView<float> product = rows(work_.product, h_.n_ff, b);
    gated_unit(unit_, rows(a_.gate, h_.n_ff, b), rows(a_.up, h_.n_ff, b), product);
    linear(product, work_.weight, w_.down_bias, rows(work_.y, h_.n_embd, b));
  });
}

void HostLayerGradient::forward(MatrixView<float> x, Team& team) {
  begin(x, GemmPrecision::f32, team);
  find_y(team);
  team.for_each(
      n_blocks(),
      [&](int b) {
        const MatrixView<float> of_block = part(x, b), y = rows(work_.y, h_.n_embd, b);
        std::copy_n(of_block.data, of_block.rows * h_.n_embd, rows(a_.middle, h_.n_embd, b).data);
        if (!w_.ffn_post_norm.empty()) rms_norm(y, w_.ffn_post_norm, h_.norm_epsilon, y);
        add(y, of_block);
      },
      [&] { a_.complete = keeps_; });
}

// --- backward ---

void HostLayerGradient::feed_forward_back(MatrixView<float> gradient, Team& team) {
  if (!w_.ffn_post_norm.empty()) find_y(team);
  multiply_by(back_of(w_.down, h_.n_embd, h_.n_ff), team, [&](int b) {
    const MatrixView<float> dy = rows(work_.dy, h_.n_embd, b), dproduct = rows(work_.product, h_.n_ff, b);
    std::copy_n(part(gradient, b).data, dy.rows * h_.n_embd, dy.data);
    if (!w_.ffn_post_norm.empty())
      rms_norm_back(rows(work_.y, h_.n_embd, b), w_.ffn_post_norm, h_.norm_epsilon, dy);
    linear_back(dy, work_.weight, /*accumulate=*/false, dproduct);
    gated_unit_back(unit_, dproduct, rows(a_.gate, h_.n_ff, b), rows(a_.up, h_.n_ff, b));
  });
  multiply_by(back_of(w_.gate, h_.n_ff, h_.n_embd), team, [&](int b) {
    linear_back(rows(a_.gate, h_.n_ff, b), work_.weight, /*accumulate=*/false, rows(work_.dy, h_.n_embd, b));
  });
  multiply_by(back_of(w_.up, h_.n_ff, h_.n_embd), team, [&](int b) {
    const MatrixView<float> dy = rows(work_.dy, h_.n_embd, b);
    linear_back(rows(a_.up, h_.n_ff, b), work_.weight, /*accumulate=*/true, dy);
    rms_norm_back(rows(a_.middle, h_.n_embd, b), w_.ffn_norm, h_.norm_epsilon, dy);
    add(dy, part(gradient, b));
  });
}

void HostLayerGradient::attended_back(MatrixView<const float> gradient, Team& team) {
  if (!w_.attn_post_norm.empty()) {
    multiply_by(forward_of(w_.attn_out, h_.n_embd, n_q()), team, [&](int b) {
      linear(rows(a_.attended, n_q(), b), work_.weight, w_.out_bias, rows(work_.y, h_.n_embd, b));
    });
  }
  multiply_by(back_of(w_.attn_out, h_.n_embd, n_q()), team, [&](int b) {
    const MatrixView<float> dy = rows(work_.dy, h_.n_embd, b);
    std::copy_n(part(gradient, b).data, dy.rows * h_.n_embd, dy.data);
    if (!w_.attn_post_norm.empty())
      rms_norm_back(rows(work_.y, h_.n_embd, b), w_.attn_post_norm, h_.norm_epsilon, dy);
    linear_back(dy, work_.weight, /*accumulate=*/false, rows(work_.attended_gradient, n_q(), b));
  });
}

// The gradient by K and V of the heads that share them, in the order of the heads.
void HostLayerGradient::sum_group(int kv_head, int block) {
  const int group = h_.n_heads / h_.n_kv_heads;
  const int n_cols = n_qkv();
  for (const Side side : kSides) {
    for (int r = block * kPageTokens; r < block * kPageTokens + block_rows(block); ++r) {
      float* sum = work_.qkv_gradient.data() + static_cast<std::ptrdiff_t>(r) * n_cols + n_q() +
                   static_cast<int>(side) * n_kv() + kv_head * h_.head_dim;
      std::fill_n(sum, h_.head_dim, 0.0F);
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const KvGradients g = kv_gradients(head);
        const float* from = (side == Side::key ? g.k : g.v).row(r);
        for (int i = 0; i < h_.head_dim; ++i) sum[i] += from[i];
      }
    }
  }
}

void HostLayerGradient::project_back(MatrixView<const float> x, MatrixView<float> gradient, int block) {
  const int n_cols = n_qkv();
  const MatrixView<float> back = rows(work_.qkv_gradient, n_cols, block);
  for (int head = 0; head < h_.n_heads + h_.n_kv_heads; ++head) {
    const std::vector<float>& norm = head < h_.n_heads ? w_.q_norm : w_.k_norm;
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(head) * h_.head_dim;
    const MatrixView<float> of_head(back.data + first, x.rows, h_.head_dim, n_cols);
    for (int r = 0; r < x.rows; ++r) rope_.turn_back(block * kPageTokens + r, of_head.row(r));
    if (norm.empty()) continue;
    const float* before = rows(a_.plain_qkv, n_cols, block).data + first;
    rms_norm_back({before, x.rows, h_.head_dim, n_cols}, norm, h_.norm_epsilon, of_head);
  }
  std::vector<float> memory;
  const MatrixView<float> dx = allocated(memory, x.rows, h_.n_embd);
  linear_back(back, work_.weight, /*accumulate=*/false, dx);
  rms_norm_back(x, w_.attn_norm, h_.norm_epsilon, dx);
  add(dx, gradient);
}

void HostLayerGradient::backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team) {
  team.once([&] {
    work_.attended_gradient.resize(a_.attended.size());
    work_.qkv_gradient.resize(a_.qkv.size());
    work_.score_weights.resize(static_cast<std::size_t>(h_.n_heads) * n_rows_);
    work_.head_gradients.assign(static_cast<std::size_t>(2) * h_.n_heads * n_rows_ * h_.head_dim, 0.0F);
    if (!a_.complete) std::copy_n(x.data, a_.middle.size(), a_.middle.data());
  });
  if (!a_.complete) begin({a_.middle.data(), n_rows_, h_.n_embd}, work_.precision, team);
  feed_forward_back(gradient, team);
  attended_back(gradient, team);
  team.for_each(h_.n_heads, [&](int head) {
    HeadAttention of_head = attention(head);
    const int n_cols = n_qkv();
    for (int b = 0; b < n_blocks(); ++b) {
      MatrixView<float> out = rows(work_.attended_gradient, n_q(), b);
      MatrixView<float> q = rows(work_.qkv_gradient, n_cols, b);
      out.data += static_cast<std::ptrdiff_t>(head) * h_.head_dim;
      q.data += static_cast<std::ptrdiff_t>(head) * h_.head_dim;
      out.cols = q.cols = h_.head_dim;
      of_head.attend_back(b, out, q, kv_gradients(head));
    }
  });
  team.for_each(h_.n_kv_heads * n_blocks(),
                [&](int item) { sum_group(item % h_.n_kv_heads, item / h_.n_kv_heads); });
  multiply_by(back_of(w_.qkv, n_qkv(), h_.n_embd), team,
              [&](int b) { project_back(part(x, b), part(gradient, b), b); });
  team.once([&] { a_.complete = false; });
}

}  // namespace kvant
