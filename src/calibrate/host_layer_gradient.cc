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
                                     const RopeTable& rope, int n_rows, LayerActivations& activations,
                                     bool keeps)
    : h_(hparams),
      w_(weights),
      rope_(rope),
      n_rows_(n_rows),
      shape_(attention_shape(hparams, layer)),
      unit_(hparams.architecture->activation == Activation::gelu ? GatedUnit::gelu : GatedUnit::silu),
      a_(activations),
      keeps_(keeps) {
  const auto n = static_cast<std::size_t>(n_rows);
  a_.qkv.resize(n * (n_q() + 2 * n_kv()));
  if (has_head_norms()) a_.plain_qkv.resize(a_.qkv.size());
  a_.attended.resize(n * n_q());
  if (!keeps) return;
  a_.middle.resize(n * h_.n_embd);
  a_.gate.resize(n * h_.n_ff);
  a_.up.resize(n * h_.n_ff);
}

MatrixView<const float> HostLayerGradient::qkv_head(int head) const {
  return {a_.qkv.data() + static_cast<std::ptrdiff_t>(head) * h_.head_dim, n_rows_, h_.head_dim,
          n_q() + 2 * n_kv()};
}

MatrixView<const float> HostLayerGradient::stored(int kv_head, Side side) const {
  return qkv_head(h_.n_heads + (side == Side::value ? h_.n_kv_heads : 0) + kv_head);
}

HeadAttention HostLayerGradient::attention(int head) const {
  const int kv_head = head / (h_.n_heads / h_.n_kv_heads);
  return {shape_, qkv_head(head), stored(kv_head, Side::key), stored(kv_head, Side::value)};
}

MatrixView<const float> HostLayerGradient::output_gradient(int head) const {
  return {attended_gradient_.data() + static_cast<std::ptrdiff_t>(head) * h_.head_dim, n_rows_, h_.head_dim,
          n_q()};
}

KvGradients HostLayerGradient::kv_gradients(int head) {
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(n_rows_) * h_.head_dim;
  float* first = head_gradients_.data() + 2 * size * head;
  return {{first, n_rows_, h_.head_dim},
          {first + size, n_rows_, h_.head_dim},
          score_weights_.data() + static_cast<std::ptrdiff_t>(head) * n_rows_};
}

std::vector<double> HostLayerGradient::query_moments(int kv_head) const {
  const int group = h_.n_heads / h_.n_kv_heads;
  std::vector<double> sums(static_cast<std::size_t>(h_.head_dim) * h_.head_dim, 0.0);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const auto weights = std::span(score_weights_).subspan(static_cast<std::size_t>(head) * n_rows_, n_rows_);
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
  const int n_cols = n_q() + 2 * n_kv();
  const MatrixView<float> turned = rows(a_.qkv, n_cols, block);
  linear(normed, w_.qkv, w_.qkv_bias, turned);
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
  std::vector<float> memory;
  const MatrixView<float> y = allocated(memory, x.rows, h_.n_embd);
  linear(rows(a_.attended, n_q(), block), w_.attn_out, w_.out_bias, y);
  if (!w_.attn_post_norm.empty()) rms_norm(y, w_.attn_post_norm, h_.norm_epsilon, y);
  add(y, x);
}

// What the feed-forward network computes on the way from x [rows, n_embd] to what it adds.
struct HostLayerGradient::FeedForward {
  std::vector<float> memory[5];
  MatrixView<float> normed, gate, up, product, y;

  // kept_gate, kept_up: where these are to be, unless null.
  FeedForward(const HostLayerGradient& of, int n, MatrixView<float> kept_gate, MatrixView<float> kept_up)
      : normed(allocated(memory[0], n, of.h_.n_embd)),
        gate(kept_gate.data != nullptr ? kept_gate : allocated(memory[1], n, of.h_.n_ff)),
        up(kept_up.data != nullptr ? kept_up : allocated(memory[2], n, of.h_.n_ff)),
        product(allocated(memory[3], n, of.h_.n_ff)),
        y(allocated(memory[4], n, of.h_.n_embd)) {}

  void find_gate_and_up(const HostLayerGradient& of, MatrixView<const float> x) {
    const F32Layer& w = of.w_;
    rms_norm(x, w.ffn_norm, of.h_.norm_epsilon, normed);
    linear(normed, w.gate, w.gate_bias, gate);
    linear(normed, w.up, w.up_bias, up);
  }
  void find_y(const HostLayerGradient& of) {
    gated_unit(of.unit_, gate, up, product);
    linear(product, of.w_.down, of.w_.down_bias, y);
  }
};

void HostLayerGradient::feed_forward(MatrixView<float> x, int block) {
  FeedForward f(*this, x.rows, kept(a_.gate, h_.n_ff, block), kept(a_.up, h_.n_ff, block));
  f.find_gate_and_up(*this, x);
  f.find_y(*this);
  if (!w_.ffn_post_norm.empty()) rms_norm(f.y, w_.ffn_post_norm, h_.norm_epsilon, f.y);
  add(f.y, x);
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

void HostLayerGradient::forward(MatrixView<float> x, Team& team) {
  team.for_each(n_blocks(), [&](int b) { project(x.slice(b * kPageTokens, block_rows(b)), b); });
  attend(team);
  team.for_each(n_blocks(), [&](int b) {
    const MatrixView<float> of_block = x.slice(b * kPageTokens, block_rows(b));
    add_attended(of_block, b);
    if (keeps_) std::copy_n(of_block.data, of_block.rows * h_.n_embd, rows(a_.middle, h_.n_embd, b).data);
    feed_forward(of_block, b);
  });
  team.once([&] { a_.complete = keeps_; });
}

// --- backward ---

void HostLayerGradient::feed_forward_back(MatrixView<const float> x, MatrixView<float> gradient, int block) {
  FeedForward f(*this, x.rows, kept(a_.gate, h_.n_ff, block), kept(a_.up, h_.n_ff, block));
  if (!a_.complete) f.find_gate_and_up(*this, x);
  std::vector<float> memory;
  const MatrixView<float> dy = allocated(memory, x.rows, h_.n_embd);
  std::copy_n(gradient.data, memory.size(), dy.data);
  if (!w_.ffn_post_norm.empty()) {
    f.find_y(*this);
    rms_norm_back(f.y, w_.ffn_post_norm, h_.norm_epsilon, dy);
  }
  linear_back(dy, w_.down, /*accumulate=*/false, f.product);
  gated_unit_back(unit_, f.product, f.gate, f.up);
  linear_back(f.gate, w_.gate, /*accumulate=*/false, dy);
  linear_back(f.up, w_.up, /*accumulate=*/true, dy);
  rms_norm_back(x, w_.ffn_norm, h_.norm_epsilon, dy);
  add(dy, gradient);
}

void HostLayerGradient::attended_back(MatrixView<const float> gradient, int block) {
  std::vector<float> memory[2];
  const MatrixView<float> dy = allocated(memory[0], gradient.rows, h_.n_embd);
  std::copy_n(gradient.data, memory[0].size(), dy.data);
  if (!w_.attn_post_norm.empty()) {
    const MatrixView<float> y = allocated(memory[1], gradient.rows, h_.n_embd);
    linear(rows(a_.attended, n_q(), block), w_.attn_out, w_.out_bias, y);
    rms_norm_back(y, w_.attn_post_norm, h_.norm_epsilon, dy);
  }
  linear_back(dy, w_.attn_out, /*accumulate=*/false, rows(attended_gradient_, n_q(), block));
}

// The gradient by K and V of the heads that share them, in the order of the heads.
void HostLayerGradient::sum_group(int kv_head, int block) {
  const int group = h_.n_heads / h_.n_kv_heads;
  const int n_cols = n_q() + 2 * n_kv();
  for (const Side side : kSides) {
    for (int r = block * kPageTokens; r < block * kPageTokens + block_rows(block); ++r) {
      float* sum = qkv_gradient_.data() + static_cast<std::ptrdiff_t>(r) * n_cols + n_q() +
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
  const int n_cols = n_q() + 2 * n_kv();
  const MatrixView<float> back = rows(qkv_gradient_, n_cols, block);
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
  linear_back(back, w_.qkv, /*accumulate=*/false, dx);
  rms_norm_back(x, w_.attn_norm, h_.norm_epsilon, dx);
  add(dx, gradient);
}

void HostLayerGradient::backward(MatrixView<const float> x, MatrixView<float> gradient, Team& team) {
  const auto block_of = [&](const auto& rows, int b) { return rows.slice(b * kPageTokens, block_rows(b)); };
  team.once([&] {
    attended_gradient_.resize(a_.attended.size());
    qkv_gradient_.resize(a_.qkv.size());
    score_weights_.resize(static_cast<std::size_t>(h_.n_heads) * n_rows_);
    head_gradients_.assign(static_cast<std::size_t>(2) * h_.n_heads * n_rows_ * h_.head_dim, 0.0F);
  });
  if (!a_.complete) {
    team.for_each(n_blocks(), [&](int b) { project(block_of(x, b), b); });
    attend(team);
  }
  team.for_each(n_blocks(), [&](int b) {
    std::vector<float> memory;
    MatrixView<float> middle = kept(a_.middle, h_.n_embd, b);
    if (!a_.complete) {
      if (!keeps_) middle = allocated(memory, block_rows(b), h_.n_embd);
      std::copy_n(block_of(x, b).data, middle.rows * h_.n_embd, middle.data);
      add_attended(middle, b);
    }
    feed_forward_back(middle, block_of(gradient, b), b);
    attended_back(block_of(gradient, b), b);
  });
  team.for_each(h_.n_heads, [&](int head) {
    HeadAttention of_head = attention(head);
    const int n_cols = n_q() + 2 * n_kv();
    for (int b = 0; b < n_blocks(); ++b) {
      MatrixView<float> out = rows(attended_gradient_, n_q(), b);
      MatrixView<float> q = rows(qkv_gradient_, n_cols, b);
      out.data += static_cast<std::ptrdiff_t>(head) * h_.head_dim;
      q.data += static_cast<std::ptrdiff_t>(head) * h_.head_dim;
      out.cols = q.cols = h_.head_dim;
      of_head.attend_back(b, out, q, kv_gradients(head));
    }
  });
  team.for_each(h_.n_kv_heads * n_blocks(),
                [&](int item) { sum_group(item % h_.n_kv_heads, item / h_.n_kv_heads); });
  team.for_each(
      n_blocks(), [&](int b) { project_back(block_of(x, b), block_of(gradient, b), b); },
      [&] { a_.complete = false; });
}

}  // namespace kvant
