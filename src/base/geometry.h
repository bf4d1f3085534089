// Geometry is the shape of a model's attention, which the cache, the attention and the plans read. Side names
// the two sides of a cache, K and V.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/page_size.h"

namespace kvant {

enum class Side : std::uint8_t { key, value };
inline constexpr Side kSides[] = {Side::key, Side::value};
inline const char* side_name(Side side) {
  return side == Side::key ? "K" : "V";
}

// Describes the heads of one layer's cache in models whose layers differ (Gemma 4).
struct LayerHeads {
  int n_kv_heads = 0;  // divides the geometry's n_heads
  int head_dim = 0;
  int first = 0;  // KV heads of all layers before this layer
};

// Describes n F32 matrices [rows, columns] that are stored consecutively.
struct StateMatrices {
  int n = 0, rows = 0, columns = 0;
};

// Describes what the cache and the attention need to know about a model.
struct Geometry {
  std::string model;        // the model's name in messages
  int n_layers = 0;         // layers with attention, the only ones with pages, plans and constants
  int n_heads = 0;          // query heads
  int n_kv_heads = 0;       // divides n_heads; if layers differ, the largest number
  int head_dim = 0;         // d, a multiple of 8, at most kMaxHeadDim; the largest d if layers differ
  float softmax_scale = 0;  // scores are softmax_scale * q.k, usually 1 / sqrt(d)
  float score_softcap = 0;  // if c > 0, scores become c * tanh(score / c) (Gemma 2)
  int trained_context = 0;  // tokens
  // sliding_window [n_layers] says how many of the newest tokens a query attends to, including its own token.
  // 0 means all.
  std::vector<int> sliding_window;
  // `shared` [n_layers] says whether later layers attend to this layer's cache instead of a cache of their
  // own (Gemma 4 E2B). An empty vector means that no layer does.
  std::vector<bool> shared;
  // Recurrent layers keep a state per sequence. The size of the state does not depend on the sequence's
  // length. recurrent_values is the number of F32 values in the states of all recurrent layers.
  int n_recurrent_layers = 0;
  std::int64_t recurrent_values = 0;
  // state_matrices lists the matrices of one layer's state in their order. A device keeps each matrix
  // transposed, [columns, rows].
  std::vector<StateMatrices> state_matrices;
  // sink_logits [n_layers * n_heads] holds an extra logit for the denominator of each query head's softmax
  // (gpt-oss). An empty vector means that no head has one.
  std::vector<float> sink_logits;

  std::vector<LayerHeads> layer_heads;  // [n_layers], or empty if all layers have the same heads

  int kv_heads(int layer) const { return layer_heads.empty() ? n_kv_heads : layer_heads[layer].n_kv_heads; }
  int dim(int layer) const { return layer_heads.empty() ? head_dim : layer_heads[layer].head_dim; }
  int n_q(int layer) const { return n_heads * dim(layer); }  // values of a token's queries
  // Returns the number of values of a token's K, or of its V.
  int n_kv(int layer) const { return kv_heads(layer) * dim(layer); }
  int group(int layer) const { return n_heads / kv_heads(layer); }  // G, the query heads per KV head
  // Returns the index of a KV head among the KV heads of all layers, layer by layer.
  int head_index(int layer, int kv_head) const {
    return (layer_heads.empty() ? layer * n_kv_heads : layer_heads[layer].first) + kv_head;
  }
  int n_all_kv_heads() const { return n_layers == 0 ? 0 : head_index(n_layers - 1, kv_heads(n_layers - 1)); }
  bool heads_differ() const { return !layer_heads.empty(); }
  bool heads_are_alike(int a, int b) const { return kv_heads(a) == kv_heads(b) && dim(a) == dim(b); }
  bool is_recurrent() const { return recurrent_values > 0; }
  std::int64_t recurrent_bytes() const { return recurrent_values * static_cast<std::int64_t>(sizeof(float)); }
  bool is_shared(int layer) const { return !shared.empty() && shared[layer]; }
  bool slides(int layer) const { return sliding_window[layer] > 0; }
  // Returns the extra logit of a head, or -inf if the head has none.
  float sink_logit(int layer, int head) const {
    return sink_logits.empty() ? -std::numeric_limits<float>::infinity()
                               : sink_logits[layer * n_heads + head];
  }
};

}  // namespace kvant
