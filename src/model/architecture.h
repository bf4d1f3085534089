// Architecture: what sets one family of decoder-only transformers apart from the next, as data. The graph
// builders (transformer_graph.h, device_graph.h) read it and never ask for a name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvant {

// Of a feed-forward network. relu_squared: max(x, 0)^2. clipped_silu (gpt-oss): g sigmoid(1.702 g) (u + 1),
// gate g at most 7, up u within +-7.
enum class Activation : std::uint8_t { silu, gelu, relu_squared, clipped_silu };

// Where a block has norms: on what attention and the feed-forward network read, on what they add, or both.
enum class BlockNorms : std::uint8_t { before, around, after };

// Norms of q and k: of each head before or after RoPE, or of all heads of a token as one row.
enum class QkNorm : std::uint8_t { none, heads, rotated_heads, rows };

// The layers whose q and k RoPE turns. sliding: those with a window, where there are any.
enum class RotatedLayers : std::uint8_t { all, sliding, all_but_every_fourth };

// How logits of the router become weights of experts: softmax over all experts, over the chosen ones, or each
// by itself.
enum class Gating : std::uint8_t { softmax, softmax_of_chosen, sigmoid };

// What some layers have instead of attention. delta_net: a gated delta net (delta_network.h), of whose n
// value heads and m heads of q and k value head h reads head h mod m; grouped_delta_net: head h / (n / m).
enum class Recurrence : std::uint8_t { none, delta_net, grouped_delta_net };

// What the file's logit_scale does to logits.
enum class LogitScale : std::uint8_t { none, multiplies, divides };

struct Architecture {
  const char* name;      // general.architecture
  const char* ffn_norm;  // the tensor of the feed-forward network's norm; null: "ffn_norm"
  bool rope_neox;        // RoPE turns channels (i, i + n_rot/2) instead of (2i, 2i + 1)
  bool sections_neox;    // so it does in files with sections of time, height and width
  bool layer_norm;       // norms subtract the mean and may have biases; else they are RMS norms
  QkNorm qk_norm;        // where the file has their weights
  bool needs_qk_norm;    // and they must be there
  BlockNorms norms;
  bool parallel;       // without an ffn_norm the feed-forward network reads what attention reads
  bool ungated;        // the feed-forward network is down(activation(up x))
  bool fused_gate_up;  // ffn_up holds gate and up: [n_embd, 2 * n_ff]
  Activation activation;
  bool scales_embedding;  // token embeddings are multiplied by sqrt(n_embd)
  bool has_scales;        // the file may give scales of embeddings, of scores, and of what blocks add
  LogitScale logit_scale;
  bool temperature;  // q grows with the logarithm of its position, if the file says so
  RotatedLayers rotated;
  int sliding_period;           // p > 0: of p layers the first p - 1 slide (unless the file says otherwise)
  int default_window;           // tokens, when the file gives no window; 0: no layer slides then
  int sliding_member;           // only the member with so many layers has windows; 0: all have
  float sliding_rope_base;      // RoPE base of sliding layers, unscaled; 0: as the other layers
  bool sliding_rope_unscaled;   // sliding layers have RoPE without its scaling
  float default_score_softcap;  // when the file gives none
  float default_logit_softcap;  // when the file gives none
  int wide_query_layers;        // the one member with so many layers scales q by 1 / sqrt(n_embd / n_heads)
  // Attention's output is multiplied by the sigmoid of gates, which q's projection gives, too: a head of q,
  // its gates, the next head. Needs QkNorm::heads.
  bool gated_attention;
  Recurrence recurrence;
  // The last layers may attend to another layer's cache, and layers may read embeddings of their own.
  bool shares_kv;
  bool heads_by_layer;      // sliding layers' heads may have another size, layers other numbers of KV heads
  bool unscaled_scores;     // scores are q.k as they are
  bool normed_values;       // V has an RMS norm without weights, and may come from K's projection
  bool full_rope_factors;   // frequency factors of RoPE are for the layers with full attention
  bool layer_scales;        // what a layer hands on may be multiplied by a number of its own
  bool experts_beside;      // experts stand beside a layer's other network; each has norms of its own
  bool sinks;               // every query head has a logit that only joins its softmax's denominator
  Gating gating;            // of layers with experts, unless the file says otherwise
  bool normalizes_experts;  // the chosen experts' weights sum up to 1, unless the file says otherwise
};

// All that are supported, by name.
std::span<const Architecture> architectures();
const Architecture* find_architecture(const std::string& name);
// "gemma2, gemma3, ...", for messages.
std::string architecture_names();

// Why kvant has no place for models of an architecture that it knows by name: "layers of ...". Null: it does
// not know it.
const char* unsupported_layers(const std::string& name);

}  // namespace kvant
