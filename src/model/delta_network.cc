#include "model/delta_network.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/page_size.h"
#include "base/simd_clones.h"
#include "base/softmax.h"
#include "model/gated_sigmoid.h"

namespace kvant {
namespace {

// TokenStep describes one token's update of kDeltaColumns columns of a head's matrix, and holds the values
// that the token reads from the columns.
struct TokenStep {
  const float *q, *k;  // [n]
  const float* v;      // [kDeltaColumns]
  float decay, beta;
  float* y;  // [kDeltaColumns]
};

// Runs one token on s [n, kDeltaColumns]. Even and odd key channels are summed separately, so additions wait
// less for one another.
KVANT_SIMD_CLONES void run_token(const TokenStep& t, int n, float* s) {
  constexpr int kWidth = kDeltaColumns;
  float even[kWidth] = {}, odd[kWidth] = {};
  for (int i = 0; i < n; i += 2) {
    const float* row = s + i * kWidth;
    const float k0 = t.k[i], k1 = t.k[i + 1];
    for (int c = 0; c < kWidth; ++c) even[c] += k0 * row[c];
    for (int c = 0; c < kWidth; ++c) odd[c] += k1 * row[kWidth + c];
  }
  float delta[kWidth];
  for (int c = 0; c < kWidth; ++c) delta[c] = t.beta * (t.v[c] - t.decay * (even[c] + odd[c]));
  for (int c = 0; c < kWidth; ++c) even[c] = odd[c] = 0;
  for (int i = 0; i < n; i += 2) {
    float* row = s + i * kWidth;
    // Because the values are copied into local variables, the compiler knows that writing the row does not
    // change them.
    const float decay = t.decay, k0 = t.k[i], k1 = t.k[i + 1], q0 = t.q[i], q1 = t.q[i + 1];
    for (int c = 0; c < kWidth; ++c) {
      row[c] = decay * row[c] + k0 * delta[c];
      even[c] += q0 * row[c];
    }
    for (int c = 0; c < kWidth; ++c) {
      row[kWidth + c] = decay * row[kWidth + c] + k1 * delta[c];
      odd[c] += q1 * row[kWidth + c];
    }
  }
  for (int c = 0; c < kWidth; ++c) t.y[c] = even[c] + odd[c];
}

KVANT_SIMD_CLONES void add_product(const float* x, const float* w, int n, float* sum) {
  for (int c = 0; c < n; ++c) sum[c] += w[c] * x[c];
}

KVANT_SIMD_CLONES float sum_of_squares(const float* x, int n) {
  float sums[kReductionLanes] = {};
  for (int i = 0; i < n; i += kReductionLanes) {  // n is a multiple of kDeltaColumns
    for (int lane = 0; lane < kReductionLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

float softplus(float x) {
  constexpr float kLinear = 20;  // softplus(x) equals x in F32 from this x on
  return x > kLinear ? x : std::log1p(std::exp(x));
}

const float* values_of(const ggml_tensor* t) {
  return static_cast<const float*>(t->data);
}

}  // namespace

// Layer runs one layer.
class DeltaNetwork::Layer {
 public:
  Layer(const DeltaNetwork& network, const DeltaNetWeights& weights, int place, const DeltaRows& rows)
      : net_(network.net_),
        grouped_(network.grouped_),
        norm_epsilon_(network.norm_epsilon_),
        w_(weights),
        first_value_(place * network.net_.state_values()),
        rows_(rows) {}

  // Computes a head of q, k or v for the recurrence from its projected values. The steps are the convolution,
  // SiLU and, for q and k, the scaling to length 1. q is also divided by sqrt(head_dim).
  void convolve(const DeltaSlice& slice, int head) {
    const int d = net_.head_dim, first = head * d, n_before = net_.kernel - 1;
    std::array<float, kMaxTaps> weights;  // [kernel, d]
    for (int c = 0; c < d; ++c) {
      for (int j = 0; j < net_.kernel; ++j)
        weights[j * d + c] = values_of(w_.conv)[(first + c) * net_.kernel + j];
    }
    const float* before = slice.before == nullptr ? nullptr : slice.before + first_value_;
    // Returns the head's input at token t of the slice, where negative t come from the state. Null means
    // zeros.
    const auto input = [&](int t) -> const float* {
      if (t >= 0) return rows_.in.row(slice.first_row + t) + first;
      return before == nullptr ? nullptr : before + std::ptrdiff_t{t + n_before} * net_.channels() + first;
    };
    float* after = slice.after + first_value_;
    for (int j = 0; j < n_before; ++j) {
      float* to = after + std::ptrdiff_t{j} * net_.channels() + first;
      const float* from = input(slice.n_rows - n_before + j);
      from == nullptr ? static_cast<void>(std::fill_n(to, d, 0.0F))
                      : static_cast<void>(std::copy_n(from, d, to));
    }
    // The sums overwrite their inputs, from the newest token to the oldest, because a token's sum reads only
    // older inputs.
    for (int t = slice.n_rows - 1; t >= 0; --t) {
      std::array<float, kMaxHeadDim> sum{};
      for (int j = 0; j <= n_before; ++j) {
        if (const float* x = input(t - n_before + j)) add_product(x, &weights[j * d], d, sum.data());
      }
      gated_sigmoid(sum.data(), d, 1);
      if (head < 2 * net_.n_key_heads) {
        float factor = 1 / std::sqrt(sum_of_squares(sum.data(), d) + norm_epsilon_);
        if (head < net_.n_key_heads) factor /= std::sqrt(static_cast<float>(d));
        scale_row(sum.data(), d, factor);
      }
      std::copy_n(sum.data(), d, rows_.in.row(slice.first_row + t) + first);
    }
  }

  // Runs the recurrence of a value head and writes the head's output.
  void recur(const DeltaSlice& slice, int head) {
    const int d = net_.head_dim, key_head = key_head_of(head);
    const int k_at = (net_.n_key_heads + key_head) * d, v_at = (2 * net_.n_key_heads + head) * d;
    const std::ptrdiff_t matrix = first_value_ + net_.conv_values() + std::ptrdiff_t{head} * d * d;
    if (slice.before == nullptr) {
      std::fill_n(slice.after + matrix, d * d, 0.0F);
    } else {
      std::copy_n(slice.before + matrix, d * d, slice.after + matrix);
    }
    const int end = slice.first_row + slice.n_rows;
    for (int first = slice.first_row; first < end; first += kNearTokens) {
      const int n = std::min(kNearTokens, end - first);
      std::array<float, kNearTokens> decays, betas;
      for (int t = 0; t < n; ++t) {
        decays[t] = decay(rows_.in.row(first + t), head);
        betas[t] = sigmoid(beta_of(rows_.in.row(first + t), head));
      }
      for (int column = 0; column < d; column += kDeltaColumns) {
        float* s = slice.after + matrix + std::ptrdiff_t{column} * d;
        for (int t = 0; t < n; ++t) {
          const float* in = rows_.in.row(first + t);
          run_token({in + key_head * d, in + k_at, in + v_at + column, decays[t], betas[t],
                     rows_.out.row(first + t) + head * d + column},
                    d, s);
        }
      }
      for (int t = 0; t < n; ++t) gate(first + t, head);
    }
  }

 private:
  static constexpr int kMaxTaps = 16 * kMaxHeadDim;
  // All columns process this many tokens before the next tokens follow, so the tokens' rows stay in the
  // cache.
  static constexpr int kNearTokens = 16;

  int key_head_of(int head) const {
    return grouped_ ? head / (net_.n_value_heads / net_.n_key_heads) : head % net_.n_key_heads;
  }
  // beta_of() and alpha_of() read a value head's beta and alpha, which follow z in the row.
  float beta_of(const float* in, int head) const {
    return in[net_.channels() + net_.inner() + place_of(head, 0)];
  }
  float alpha_of(const float* in, int head) const {
    return in[net_.channels() + net_.inner() + place_of(head, 1)];
  }
  int place_of(int head, int which) const {
    if (!grouped_) return which * net_.n_value_heads + head;
    const int group = net_.n_value_heads / net_.n_key_heads;
    return head / group * 2 * group + which * group + head % group;
  }
  float decay(const float* in, int head) const {
    return std::exp(values_of(w_.a)[head] * softplus(alpha_of(in, head) + values_of(w_.dt_bias)[head]));
  }

  void gate(int row, int head) {
    const int d = net_.head_dim;
    float* y = rows_.out.row(row) + head * d;
    float* z = rows_.in.row(row) + net_.channels() + head * d;
    gated_sigmoid(z, d, 1);
    const float factor = 1 / std::sqrt(sum_of_squares(y, d) / static_cast<float>(d) + norm_epsilon_);
    for (int c = 0; c < d; ++c) y[c] *= factor * values_of(w_.norm)[c] * z[c];
  }

  const DeltaNet& net_;
  bool grouped_;
  float norm_epsilon_;
  const DeltaNetWeights& w_;
  std::ptrdiff_t first_value_;  // the first value of the layer within a sequence's state
  const DeltaRows& rows_;
};

DeltaNetwork::DeltaNetwork(const Hparams& hparams)
    : net_(hparams.delta_net), grouped_(hparams.delta_net.grouped), norm_epsilon_(hparams.norm_epsilon) {}

void DeltaNetwork::run(const DeltaNetWeights& weights, int place, const DeltaRows& rows, Team& team) {
  Layer layer(*this, weights, place, rows);
  const int n_slices = static_cast<int>(slices_.size());
  team.barrier();
  team.for_each(n_slices * net_.n_heads(),
                [&](int item) { layer.convolve(slices_[item / net_.n_heads()], item % net_.n_heads()); });
  team.for_each(n_slices * net_.n_value_heads, [&](int item) {
    layer.recur(slices_[item / net_.n_value_heads], item % net_.n_value_heads);
  });
}

}  // namespace kvant
