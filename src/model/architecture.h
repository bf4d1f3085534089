// Architecture: what sets one family of decoder-only transformers apart from the next, as data. The graph
// builder (transformer_graph.h) reads it and never asks for a name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvant {

enum class Activation : std::uint8_t { silu, gelu };

struct Architecture {
  const char* name;             // general.architecture
  bool rope_neox;               // RoPE turns channels (i, i + n_rot/2) instead of (2i, 2i + 1)
  bool qk_norm;                 // RMS norm of every head of q and k before RoPE
  bool post_norms;              // RMS norms also after attention and after the feed-forward network
  bool fused_gate_up;           // ffn_up holds gate and up: [n_embd, 2 * n_ff]
  bool scales_embedding;        // token embeddings are multiplied by sqrt(n_embd)
  Activation activation;        // of the gated feed-forward network
  int sliding_period;           // p > 0: of p layers the first p - 1 slide (unless the file says otherwise)
  int default_window;           // tokens, when the file gives no window; 0: no layer slides then
  float sliding_rope_base;      // RoPE base of sliding layers, unscaled; 0: as the other layers
  float default_score_softcap;  // when the file gives none
  float default_logit_softcap;  // when the file gives none
  int wide_query_layers;        // the one member with so many layers scales q by 1 / sqrt(n_embd / n_heads)
};

// All that are supported, by name.
std::span<const Architecture> architectures();
const Architecture* find_architecture(const std::string& name);
// "gemma2, gemma3, ...", for messages.
std::string architecture_names();

}  // namespace kvant
