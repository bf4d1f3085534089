// Weights holds the tensors of one model in memory, as ggml tensors for the model's graphs. Weights are used
// where they lie in the mapped file, unless a faster layout or a device needs a copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/engine.h"
#include "model/gguf_file.h"
#include "model/hparams.h"

struct ggml_backend_buffer_type;
struct ggml_tensor;

namespace kvant {

// NetworkWeights describes a feed-forward network or, with a third dimension, n such networks. Biases may be
// null.
struct NetworkWeights {
  // [n_embd, n_ff]. If `gate` is null, `up` [n_embd, 2 * n_ff] holds both gate and up, or the network has no
  // gate.
  ggml_tensor* gate = nullptr;
  ggml_tensor* up = nullptr;    // [n_embd, n_ff]
  ggml_tensor* down = nullptr;  // [n_ff, n_embd]
  ggml_tensor* gate_bias = nullptr;
  ggml_tensor* up_bias = nullptr;
  ggml_tensor* down_bias = nullptr;
};

// DeltaNetWeights describes a gated delta net (delta_network.h). The layer's attn_norm precedes the delta
// net, and its attn_out follows.
struct DeltaNetWeights {
  ggml_tensor* qkv = nullptr;    // [n_embd, channels], q, k and v before the convolution
  ggml_tensor* z = nullptr;      // [n_embd, inner], gates of the output
  ggml_tensor* beta = nullptr;   // [n_embd, n_value_heads]; null if beta_alpha holds the values
  ggml_tensor* alpha = nullptr;  // [n_embd, n_value_heads]
  // [n_embd, 2 * n_value_heads], for each key head its betas, then its alphas.
  ggml_tensor* beta_alpha = nullptr;
  ggml_tensor* conv = nullptr;     // [kernel, channels]
  ggml_tensor* dt_bias = nullptr;  // [n_value_heads], added to alpha
  ggml_tensor* a = nullptr;        // [n_value_heads], negative values
  ggml_tensor* norm = nullptr;     // [head_dim], the norm of a head's output
};

// LayerWeights holds the tensors of one layer. Shapes are in ggml's order: a matrix [n_in, n_out] has n_in
// contiguous values per row. A null tensor is absent.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;  // [n_embd]
  ggml_tensor* attn_norm_bias = nullptr;
  ggml_tensor* qkv = nullptr;  // [n_embd, (n_heads + 2 n_kv_heads) * head_dim]; null if q, k and v are
                               // separate
  ggml_tensor* q = nullptr;    // [n_embd, Hparams::q_columns]
  ggml_tensor* k = nullptr;    // [n_embd, n_kv_heads * head_dim]
  ggml_tensor* v = nullptr;    // [n_embd, n_kv_heads * head_dim]; may be the same tensor as k
  ggml_tensor* qkv_bias = nullptr;
  ggml_tensor* q_bias = nullptr;
  ggml_tensor* k_bias = nullptr;
  ggml_tensor* v_bias = nullptr;
  // [head_dim], [head_dim, n_heads], or [n_heads * head_dim] for norms of whole rows
  ggml_tensor* q_norm = nullptr;
  ggml_tensor* k_norm = nullptr;    // the shapes of q_norm, with n_kv_heads
  ggml_tensor* attn_out = nullptr;  // [n_heads * head_dim, n_embd]
  ggml_tensor* attn_out_bias = nullptr;
  ggml_tensor* attn_post_norm = nullptr;  // [n_embd]
  ggml_tensor* ffn_norm = nullptr;        // [n_embd]
  ggml_tensor* ffn_norm_bias = nullptr;
  DeltaNetWeights delta;          // only for a layer without attention
  NetworkWeights ffn;             // only for a layer without experts
  ggml_tensor* router = nullptr;  // [n_embd, n_experts]; null if the layer has no experts
  // [n_embd], the norm of the router's input. If null, the router reads the experts' input.
  ggml_tensor* router_norm = nullptr;
  ggml_tensor* router_bias = nullptr;  // [n_experts]
  ggml_tensor* choice_bias = nullptr;  // [n_experts], changes which experts are chosen, but not their weights
  NetworkWeights experts;              // n_experts networks in one
  NetworkWeights shared;               // the network that all rows share; `up` is null if there is none
  ggml_tensor* shared_gate = nullptr;  // [n_embd], the sigmoid of its product with a row weighs `shared`;
                                       // null means a weight of 1
  // If experts run next to another network, experts_norm, experts_post_norm and dense_post_norm norm the
  // experts' inputs, the experts' outputs, and the other network's outputs.
  ggml_tensor* experts_norm = nullptr;          // [n_embd]
  ggml_tensor* experts_post_norm = nullptr;     // [n_embd]
  ggml_tensor* dense_post_norm = nullptr;       // [n_embd]
  std::vector<float> expert_scales;             // [n_experts], factors of the experts' outputs; empty if all
                                                // are 1
  ggml_tensor* device_expert_scales = nullptr;  // the experts' scales on a device, which uses only this
                                                // tensor; null if all scales are 1
  ggml_tensor* ffn_post_norm = nullptr;         // [n_embd]
  // embd_gate, embd_out and embd_post_norm process the layer's own embeddings. The three tensors are a gate,
  // the projection back, and its norm. All three are null if the model has no embeddings of that kind.
  ggml_tensor* embd_gate = nullptr;       // [n_embd, n_layer_embd]
  ggml_tensor* embd_out = nullptr;        // [n_layer_embd, n_embd]
  ggml_tensor* embd_post_norm = nullptr;  // [n_embd]
  float scale = 1;                        // the layer's output is multiplied by this
};

// DeviceWeights says where the weights of a device lie.
struct DeviceWeights {
  ggml_backend_buffer_type* memory = nullptr;       // device memory; null if there is no device
  ggml_backend_buffer_type* host_memory = nullptr;  // host memory that the device can read; null means any
                                                    // host memory
  int n_host_layers = 0;                            // the matrices of this many first layers lie in host
                                                    // memory
};

class Weights {
 public:
  // Loads every tensor of the file, and sets hparams.n_vocab and hparams.sink_logits. The file stays mapped
  // as long as the weights live. With a device, all weights except the embeddings lie where `device` says.
  // Returns an error for a missing, misshapen or unsupported tensor, and if memory is exhausted.
  static Result<std::unique_ptr<Weights>> load(std::shared_ptr<GgufFile> file, Hparams& hparams,
                                               WeightMode mode, int n_threads,
                                               const DeviceWeights& device = {});
  ~Weights();

  ggml_tensor* token_embedding() const { return embedding_; }  // [n_embd, n_vocab]
  ggml_tensor* output_norm() const { return output_norm_; }    // [n_embd]
  ggml_tensor* output_norm_bias() const { return output_norm_bias_; }
  // Returns the output matrix [n_embd, n_vocab]. If the file has none, the result is the embedding, or on a
  // device a copy of the embedding.
  ggml_tensor* output() const { return output_; }
  ggml_tensor* output_bias() const { return output_bias_; }
  // Returns the frequency factors of RoPE [n_rot / 2], or null. With is_short, returns LongRoPE's factors for
  // short sequences, if the engine's context uses the long factors.
  ggml_tensor* rope_factors(bool is_short = false) const {
    return is_short ? short_rope_factors_ : rope_factors_;
  }
  bool has_short_rope_factors() const { return short_rope_factors_ != nullptr; }
  // layer_embedding() returns the layers' own embeddings of tokens. layer_projection() and
  // layer_projection_norm() return the projection from the model's embedding, and its norm. The results are
  // null if the model has none.
  ggml_tensor* layer_embedding() const { return layer_embedding_; }    // [n_layers * n_layer_embd, n_vocab]
  ggml_tensor* layer_projection() const { return layer_projection_; }  // [n_embd, n_layers * n_layer_embd]
  ggml_tensor* layer_projection_norm() const { return layer_projection_norm_; }  // [n_layer_embd]
  const LayerWeights& layer(int i) const { return layers_[i]; }

  std::int64_t bytes() const { return bytes_; }            // bytes in memory, mapped pages included
  std::int64_t host_bytes() const { return host_bytes_; }  // bytes that a device reads from host memory
  // Returns whether the norms of queries and keys differ from the file's (query_key_balance.h).
  bool balances_keys() const { return !key_factors_.empty(); }
  // Returns the factors [d] by which the key channels of a KV head were multiplied. The list is empty if
  // norms are as in the file.
  std::span<const float> key_factors(int layer, int kv_head) const;
  // Returns the type of most matrix values in the file, such as "Q4_1".
  const std::string& type_name() const { return type_name_; }

 private:
  class Loader;
  struct Storage;
  Weights();

  std::unique_ptr<Storage> storage_;
  ggml_tensor* embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  ggml_tensor* output_norm_bias_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* output_bias_ = nullptr;
  ggml_tensor *rope_factors_ = nullptr, *short_rope_factors_ = nullptr;
  ggml_tensor* layer_embedding_ = nullptr;
  ggml_tensor* layer_projection_ = nullptr;
  ggml_tensor* layer_projection_norm_ = nullptr;
  std::vector<LayerWeights> layers_;
  std::int64_t bytes_ = 0, host_bytes_ = 0;
  struct KeyFactors {
    std::vector<float> of_heads;  // [n, d], where n is 1 or n_kv_heads
    int d = 0;
  };
  std::vector<KeyFactors> key_factors_;  // [n_layers] if norms differ from the file's, else empty
  std::string type_name_;
};

}  // namespace kvant
