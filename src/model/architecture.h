// Architecture: what sets one family of decoder-only transformers apart from the next, as data. A layer's
// computation is a program (layer_program.h); the rest says how metadata are to be read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/layer_program.h"

namespace kvant {

// These are functions of feed-forward networks. relu_squared: max(x, 0)^2. clipped_silu (gpt-oss): g
// sigmoid(1.702 g) (u + 1), gate g at most 7, up u within +-7.
enum class Activation : std::uint8_t { silu, gelu, relu_squared, clipped_silu };

// A feed-forward network is down(activation(gate x) * up x), or without a gate down(activation(up x)).
struct NetworkUnit {
  Activation activation = Activation::silu;
  bool ungated = false;
  bool fused = false;  // ffn_up holds gate and up: [n_embd, 2 * n_ff]
};

// RoPE turns channels (2i, 2i + 1) or, neox, (i, i + n_rot/2). sections: of files that have sections of time,
// height and width.
enum class RopePairs : std::uint8_t { adjacent, neox, neox_with_sections };

// How logits of the router become weights of experts: softmax over all experts, over the chosen ones, or each
// by itself.
enum class Gating : std::uint8_t { softmax, softmax_of_chosen, sigmoid };

// Unless the file says otherwise.
struct ExpertRules {
  Gating gating = Gating::softmax;
  bool normalizes = false;  // the chosen experts' weights sum up to 1
};

// What layers with a window, which slide, have of their own.
struct Windows {
  int period = 0;           // p > 0: of p layers the first p - 1 slide (unless the file says otherwise)
  int tokens = 0;           // when the file gives no window; 0: no layer slides then
  int only_member = 0;      // only the member with so many layers has windows; 0: all have
  float rope_base = 0;      // unscaled; 0: that of the other layers
  bool rope_plain = false;  // RoPE has no scaling there
  bool rope_without_factors = false;  // frequency factors are for the layers with full attention
};

struct ScoreRules {
  bool unscaled = false;  // they are q.k as they are
  int wide_layers = 0;    // the one member with so many layers scales q by 1 / sqrt(n_embd / n_heads)
  float softcap = 0;      // when the file gives none; 0: files can't give one
};

// What the file's logit_scale does to logits.
enum class LogitScale : std::uint8_t { none, multiplies, divides };

struct Architecture {
  const char* name;  // general.architecture
  LayerProgram layer;
  NetworkUnit unit;
  ExpertRules experts;
  RopePairs rope = RopePairs::adjacent;
  Windows windows;
  ScoreRules scores;
  LogitScale logit_scale = LogitScale::none;
  float logit_softcap = 0;        // when the file gives none
  bool layer_norm = false;        // norms subtract the mean and may have biases; else they are RMS norms
  bool scales_embedding = false;  // token embeddings are multiplied by sqrt(n_embd)
  bool has_scales = false;        // the file may give scales of embeddings, of scores, and of what blocks add
  // Sliding layers' heads may have another size, layers other numbers of KV heads and embeddings of their
  // own, and the last ones may attend to another layer's cache.
  bool unlike_layers = false;
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
