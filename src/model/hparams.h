// Hparams: the sizes and constants of one model, read and checked from its GGUF metadata.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "model/architecture.h"
#include "model/gguf_file.h"

namespace kvant {

// Rotary position embedding of one kind of layers (Su et al. 2021) with YaRN's scaling (Peng et al. 2023,
// section 3): angles are position * frequency_scale * base^(-2i/n_rot), mixed with the unscaled angle by
// `extension`, and q and k are multiplied by `magnitude` (and by YaRN's own factor when extension > 0).
struct Rope {
  float base = 10000;
  float frequency_scale = 1;  // 1 / factor
  float extension = 0;        // 1: YaRN's interpolation by parts; 0: plain linear scaling
  float magnitude = 1;
  float beta_fast = 32;  // rotations over the original context above which a channel pair is left as it is
  float beta_slow = 1;   // and below which it is fully interpolated
  int original_context = 0;
};

// Which of a file's frequency factors apply (Phi-3's LongRoPE, Ding et al. 2024).
enum class LongRope : std::uint8_t { none, short_factors, long_factors };

inline constexpr int kMaxExperts = 1024;
inline constexpr int kDeltaColumns = 32;  // of a delta net's matrix, that are computed at once

// The mixtures of experts of a model (Shazeer et al. 2017): each row goes through `n_used` of `n`
// feed-forward networks, those with the largest logits of a router, and their outputs are added up by
// weights.
struct Experts {
  int n = 0;  // 0: no layer has any
  int n_used = 0;
  int n_ff = 0;         // of each
  int n_ff_shared = 0;  // of the network that all rows go through besides; 0: there is none
  Gating gating = Gating::softmax;
  bool normalizes = false;  // the chosen ones' weights are divided by their sum
  float scale = 1;          // then they are multiplied by this
  // Experts in order make up `n_groups` groups, and only the experts of the best `n_groups_used` can be
  // chosen; a group is as good as its two best experts (DeepSeek-V3, section 2.1.2).
  int n_groups = 1;
  int n_groups_used = 1;
};

// The layers without attention: gated delta nets (Yang et al. 2024, arXiv 2412.06464), whose q, k and v go
// through a causal convolution of each channel first.
struct DeltaNet {
  int n_key_heads = 0;    // of q, and of k; 0: no layer is one
  int n_value_heads = 0;  // a multiple of that
  int head_dim = 0;       // of all of them: a multiple of kDeltaColumns
  bool grouped = false;   // RunDeltaNet::grouped
  int kernel = 0;         // tokens that the convolution sees

  int n_heads() const { return 2 * n_key_heads + n_value_heads; }  // that are convolved: of q, k and v
  int channels() const { return n_heads() * head_dim; }
  int inner() const { return n_value_heads * head_dim; }  // channels of v, of z and of the output
  int width() const { return channels() + inner() + 2 * n_value_heads; }  // q, k, v, z, beta and alpha
  // F32 values of a layer's state: the convolution's newest inputs, and a matrix of each value head.
  std::int64_t conv_values() const { return std::int64_t{kernel - 1} * channels(); }
  std::int64_t matrix_values() const { return std::int64_t{inner()} * head_dim; }
  std::int64_t state_values() const { return conv_values() + matrix_values(); }
  // Of which a state is made (delta_network.h): inputs by token, and blocks of matrices' columns.
  std::vector<StateMatrices> state_matrices() const {
    return {{1, kernel - 1, channels()}, {inner() / kDeltaColumns, head_dim, kDeltaColumns}};
  }
};

struct Hparams {
  const Architecture* architecture = nullptr;
  int n_layers = 0;          // of all kinds
  int n_layers_in_file = 0;  // with those that guess further tokens alone, which are left out
  int n_embd = 0;
  int n_ff = 0;  // of layers without experts; where they differ, the most that one has
  // Channels of what every layer reads of each token beside the layer before it; 0: nothing.
  int n_layer_embd = 0;
  Experts experts;
  DeltaNet delta_net;
  int n_heads = 0;
  int n_kv_heads = 0;      // where layers differ, the most that one has
  int head_dim = 0;        // where layers differ, that of layers with full attention
  int n_rot = 0;           // channels that RoPE turns: the first ones of a head
  int sliding_n_rot = 0;   // the same in sliding layers
  bool rope_neox = false;  // it turns channels (i, i + n_rot/2) instead of (2i, 2i + 1)
  int n_vocab = 0;
  int trained_context = 0;
  float norm_epsilon = 0;
  float embedding_scale = 1;  // of token embeddings
  float residual_scale = 1;   // of what a block adds
  float logit_scale = 1;
  Rope rope;          // of layers with full attention
  Rope sliding_rope;  // of sliding layers
  LongRope long_rope = LongRope::none;
  // q of position p is multiplied by 1 + temperature log(1 + floor(p / temperature_step)); 0: by 1.
  float temperature = 0;
  int temperature_step = 1;
  float softmax_scale = 0;
  float score_softcap = 0;      // 0: none
  float logit_softcap = 0;      // 0: none
  std::vector<bool> recurrent;  // [n_layers]: a delta net instead of attention
  // [n_layers]: its number among the layers of its kind, as the cache counts; of one that attends to another
  // layer's cache, that one's
  std::vector<int> place;
  int n_sharing = 0;                    // the last so many layers do
  std::vector<int> all_ff;              // [n_layers]; empty: n_ff
  std::vector<int> sliding_window;      // [n_layers], tokens; 0: full attention
  std::vector<LayerHeads> layer_heads;  // [n_layers], without `first`; empty: all layers' heads are alike
  std::vector<bool> rotated;            // [n_layers]: whether RoPE turns q and k
  bool gated_heads = false;             // ProjectHeads::gates
  std::vector<float> sink_logits;       // [n_layers * n_heads], once the weights are read; empty: none
  std::string size_label;               // "135M", may be empty

  int kv_heads(int layer) const { return layer_heads.empty() ? n_kv_heads : layer_heads[layer].n_kv_heads; }
  int dim(int layer) const { return layer_heads.empty() ? head_dim : layer_heads[layer].head_dim; }
  int n_q(int layer) const { return n_heads * dim(layer); }           // columns of q
  int n_kv(int layer) const { return kv_heads(layer) * dim(layer); }  // and of k, and of v
  // What q of the position is multiplied by.
  float query_scale(int position) const;
  int n_recurrent() const;
  bool has_kv(int layer) const { return layer < n_layers - n_sharing; }  // not: it shares another layer's
  int ff(int layer) const { return all_ff.empty() ? n_ff : all_ff[layer]; }
  // Outputs of q's projection: with gates, each head is followed by its own.
  int q_columns(int layer) const { return (gated_heads ? 2 : 1) * n_q(layer); }
  // What the layer does, in order: up to its attention or delta net, and behind it.
  LayerSteps steps_to_attention(int layer) const;
  std::array<LayerSteps, 4> steps_behind(bool has_experts) const;
  bool network_may_read_normed() const;  // what attention read, where its own norm has no weights
  Geometry geometry() const;
};

// context: the tokens that a sequence may reach (0: the trained context); it decides between LongRoPE's
// factors. Errors: an architecture or attention kind that is not supported (with the list of those that are),
// a missing or implausible value.
Result<Hparams> read_hparams(const GgufFile& file, int context);

}  // namespace kvant
