// Architecture describes, as data, what distinguishes one family of decoder-only transformers from another.
// The computation of a layer is a program (layer_program.h). The other members are constants of the
// computation, and say how a file's metadata are to be read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/layer_program.h"

namespace kvant {

// Activation is the function in a feed-forward network. relu_squared is max(x, 0)^2. clipped_silu (gpt-oss)
// is g sigmoid(1.702 g) (u + 1), where the gate g is at most 7 and u is clamped to +-7.
enum class Activation : std::uint8_t { silu, gelu, relu_squared, clipped_silu };

// NetworkUnit describes a feed-forward network: down(activation(gate x) * up x), or down(activation(up x))
// without a gate.
struct NetworkUnit {
  Activation activation = Activation::silu;
  bool ungated = false;
  bool fused = false;  // ffn_up holds gate and up, [n_embd, 2 * n_ff]
};

// RopePairs says which channels RoPE rotates together: (2i, 2i + 1), or (i, i + n_rot/2) for neox. Some files
// have sections for time, height and width.
enum class RopePairs : std::uint8_t { adjacent, neox, neox_with_sections };

// Gating says how the router's logits become weights of experts. The choices are a softmax over all experts,
// a softmax over the chosen ones, and a sigmoid of each.
enum class Gating : std::uint8_t { softmax, softmax_of_chosen, sigmoid };

// A file may override these rules.
struct ExpertRules {
  Gating gating = Gating::softmax;
  bool normalizes = false;  // the weights of the chosen experts are divided by their sum
};

// Windows describes the layers with a sliding window.
struct Windows {
  int period = 0;           // of every p layers, the first p - 1 have a window, unless the file says
                            // otherwise; 0 means that no layer has one
  int tokens = 0;           // the window if the file gives none; 0 means that only the file can give
                            // one
  int only_member = 0;      // only the model with this many layers has windows; 0 means all models
  float rope_base = 0;      // RoPE's base in layers with a window, without scaling; 0 means the base of the
                            // other layers
  bool rope_plain = false;  // RoPE has no scaling in layers with a window
  bool rope_without_factors = false;  // frequency factors apply only to layers with full attention
};

struct ScoreRules {
  bool unscaled = false;  // q.k is not divided by sqrt(head_dim)
  int wide_layers = 0;    // only the model with this many layers scales q by 1 / sqrt(n_embd / n_heads)
  float softcap = 0;      // the cap if the file gives none; 0 means that files cannot give one
};

// LogitScale says what the file's logit_scale does to logits.
enum class LogitScale : std::uint8_t { none, multiplies, divides };

// FileScales says whether the file has scales of embeddings, of scores, and of the outputs of blocks. If the
// scales are required, a file must have all but the scale of scores, and also a logit_scale.
enum class FileScales : std::uint8_t { none, optional, required };

struct Architecture {
  const char* name;  // the file's general.architecture has this value
  LayerProgram layer;
  NetworkUnit unit;
  ExpertRules experts;
  RopePairs rope = RopePairs::adjacent;
  Windows windows;
  ScoreRules scores;
  LogitScale logit_scale = LogitScale::none;
  float logit_softcap = 0;        // the cap if the file gives none
  bool layer_norm = false;        // norms subtract the mean and may have biases; otherwise they are RMS norms
  bool scales_embedding = false;  // token embeddings are multiplied by sqrt(n_embd)
  FileScales scales = FileScales::none;
  bool switches_rope = false;  // the file's rope.scaling.finetuned switches RoPE off
  // Layers may have different head sizes with and without a window, different numbers of KV heads, and
  // embeddings of their own. The last layers may attend to another layer's cache.
  bool unlike_layers = false;
};

// Returns all supported architectures, sorted by name.
std::span<const Architecture> architectures();
const Architecture* find_architecture(const std::string& name);
// Returns the names of all architectures for messages, in the form "gemma2, gemma3, ...".
std::string architecture_names();

// Returns which layers kvant cannot run, such as "layers of ...", for an architecture that is known but not
// supported. Returns null for an unknown name.
const char* unsupported_layers(const std::string& name);

}  // namespace kvant
