// Reads and checks the sizes and constants of one model from its GGUF metadata. A value that kvant cannot
// honour is an error, because ignoring it would give wrong results.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "model/architecture.h"
#include "model/gguf_file.h"

namespace kvant {

// Rope is the rotary position embedding of one kind of layers (Su et al. 2021) with YaRN's scaling (Peng et
// al. 2023, section 3). The angle of a position is position * frequency_scale * base^(-2i/n_rot), mixed with
// the unscaled angle by `extension`. q and k are multiplied by `magnitude`, and for extension > 0 also by
// YaRN's own factor.
struct Rope {
  float base = 10000;
  float frequency_scale = 1;  // 1 / factor
  float extension = 0;        // 1 means YaRN's interpolation by parts, and 0 means linear scaling
  float magnitude = 1;
  float beta_fast = 32;  // channel pairs with more rotations over the original context are not interpolated
  float beta_slow = 1;   // channel pairs with fewer rotations are fully interpolated
  int original_context = 0;
};

// LongRope says which of a file's frequency factors apply (Phi-3's LongRoPE, Ding et al. 2024).
enum class LongRope : std::uint8_t { none, short_factors, long_factors };

inline constexpr int kMaxExperts = 1024;
inline constexpr int kDeltaColumns = 32;  // columns of a delta net's matrix that are computed at once

// Experts describes the mixture of experts (Shazeer et al. 2017). Each row goes through `n_used` of `n`
// feed-forward networks. A router computes one logit for each network, and the networks with the largest
// logits are used. The outputs are summed with weights.
struct Experts {
  int n = 0;  // 0 if no layer has experts
  int n_used = 0;
  int n_ff = 0;
  int n_ff_shared = 0;  // the width of a network that all rows go through in addition; 0 if there is none
  Gating gating = Gating::softmax;
  bool normalizes = false;  // the weights of the chosen experts are divided by their sum
  float scale = 1;          // the weights are then multiplied by this
  // Consecutive experts form `n_groups` groups. Only experts of the best `n_groups_used` groups can be
  // chosen. A group's score is the sum of its two best experts' scores (DeepSeek-V3, section 2.1.2).
  int n_groups = 1;
  int n_groups_used = 1;
};

// DeltaNet describes the layers without attention: gated delta nets (Yang et al. 2024, arXiv 2412.06464). In
// these layers, q, k and v first go through a causal convolution of each channel.
struct DeltaNet {
  int n_key_heads = 0;    // heads of q, and of k; 0 if no layer is a delta net
  int n_value_heads = 0;  // a multiple of n_key_heads
  int head_dim = 0;       // channels of each head: a multiple of kDeltaColumns
  bool grouped = false;   // the value of RunDeltaNet::grouped
  int kernel = 0;         // number of tokens that the convolution reads

  int n_heads() const { return 2 * n_key_heads + n_value_heads; }  // convolved heads of q, k and v
  int channels() const { return n_heads() * head_dim; }
  int inner() const { return n_value_heads * head_dim; }  // channels of v, of z and of the output
  // Returns the number of columns of q, k, v, z, beta and alpha together.
  int width() const { return channels() + inner() + 2 * n_value_heads; }
  // conv_values(), matrix_values() and state_values() count the F32 values of a layer's state: the newest
  // inputs of the convolution, a matrix for each value head, and both together.
  std::int64_t conv_values() const { return std::int64_t{kernel - 1} * channels(); }
  std::int64_t matrix_values() const { return std::int64_t{inner()} * head_dim; }
  std::int64_t state_values() const { return conv_values() + matrix_values(); }
  // Returns the shapes of the matrices in a state (delta_network.h): inputs by token, and blocks of columns.
  std::vector<StateMatrices> state_matrices() const {
    return {{1, kernel - 1, channels()}, {inner() / kDeltaColumns, head_dim, kDeltaColumns}};
  }
};

struct Hparams {
  const Architecture* architecture = nullptr;
  int n_layers = 0;          // layers of all kinds
  int n_layers_in_file = 0;  // with the layers that only predict further tokens, which kvant leaves out
  int n_embd = 0;
  int n_ff = 0;  // the width of networks in layers without experts; if layers differ, the largest width
  // Each layer's own embeddings of tokens have this many channels. 0 means that there are none.
  int n_layer_embd = 0;
  Experts experts;
  DeltaNet delta_net;
  int n_heads = 0;
  int n_kv_heads = 0;      // if layers differ, the largest number
  int head_dim = 0;        // if layers differ, the size in layers with full attention
  int n_rot = 0;           // RoPE rotates this many first channels of a head
  int sliding_n_rot = 0;   // n_rot in layers with a window
  bool rope_neox = false;  // RoPE rotates channels (i, i + n_rot/2) in place of (2i, 2i + 1)
  int n_vocab = 0;
  int trained_context = 0;
  float norm_epsilon = 0;
  float embedding_scale = 1;  // token embeddings are multiplied by this
  float residual_scale = 1;   // a block's outputs are multiplied by this
  float logit_scale = 1;
  Rope rope;          // layers with full attention use this
  Rope sliding_rope;  // layers with a window use this
  LongRope long_rope = LongRope::none;
  // q at position p is multiplied by 1 + temperature log(1 + floor(p / temperature_step)). With temperature
  // 0, q is not scaled.
  float temperature = 0;
  int temperature_step = 1;
  float softmax_scale = 0;
  float score_softcap = 0;      // 0 means no cap
  float logit_softcap = 0;      // 0 means no cap
  std::vector<bool> recurrent;  // [n_layers], true for a delta net, false for attention
  // For each layer, this list [n_layers] has the layer's number among the layers of its kind, as the cache
  // counts them. A layer that attends to another layer's cache has the other layer's number.
  std::vector<int> place;
  int n_sharing = 0;                    // this many last layers attend to another layer's cache
  std::vector<int> all_ff;              // [n_layers]; empty if all are n_ff
  std::vector<int> sliding_window;      // [n_layers] in tokens; 0 means full attention
  std::vector<LayerHeads> layer_heads;  // [n_layers], without `first`; empty if all layers have the same
                                        // heads
  std::vector<bool> rotated;            // [n_layers], whether RoPE rotates q and k
  bool gated_heads = false;             // the value of ProjectHeads::gates
  std::vector<float> sink_logits;       // [n_layers * n_heads], set when the weights are loaded; empty if
                                        // there are none
  std::string size_label;               // such as "135M"; may be empty

  int kv_heads(int layer) const { return layer_heads.empty() ? n_kv_heads : layer_heads[layer].n_kv_heads; }
  int dim(int layer) const { return layer_heads.empty() ? head_dim : layer_heads[layer].head_dim; }
  int n_q(int layer) const { return n_heads * dim(layer); }           // columns of q
  int n_kv(int layer) const { return kv_heads(layer) * dim(layer); }  // columns of k, and of v
  // Returns the factor of q at a position.
  float query_scale(int position) const;
  int n_recurrent() const;
  // Returns false if the layer attends to another layer's cache.
  bool has_kv(int layer) const { return layer < n_layers - n_sharing; }
  int ff(int layer) const { return all_ff.empty() ? n_ff : all_ff[layer]; }
  // Returns the number of outputs of q's projection. With gates, each head is followed by its gates.
  int q_columns(int layer) const { return (gated_heads ? 2 : 1) * n_q(layer); }
  // steps_to_attention() returns the steps of a layer up to its attention or delta net, and
  // steps_after_attention() returns the steps after it. Both return them in order.
  LayerSteps steps_to_attention(int layer) const;
  std::array<LayerSteps, 4> steps_after_attention(bool has_experts) const;
  // Returns whether the network reads the same normed rows as attention, which is so if the network's own
  // norm has no weights.
  bool network_may_read_normed() const;
  Geometry geometry() const;
};

// Reads a file. A sequence may have at most `context` tokens (0 means the trained context), and this number
// decides between LongRoPE's factors. Returns an error for a missing or implausible value, and for an
// unsupported architecture or kind of attention. The error names the supported architectures.
Result<Hparams> read_hparams(const GgufFile& file, int context);

}  // namespace kvant
