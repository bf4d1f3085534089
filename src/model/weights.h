// Weights holds the tensors of one model in memory, as ggml tensors for its graph.
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

// Describes a feed-forward network or, with a third dimension, n of them. Biases may be null.
struct NetworkWeights {
  ggml_tensor* gate =
      nullptr;  // [n_embd, n_ff]; null: `up` holds gate and up, [n_embd, 2 n_ff], or there is none
  ggml_tensor* up = nullptr;    // [n_embd, n_ff]
  ggml_tensor* down = nullptr;  // [n_ff, n_embd]
  ggml_tensor* gate_bias = nullptr;
  ggml_tensor* up_bias = nullptr;
  ggml_tensor* down_bias = nullptr;
};

// Describes a gated delta net (delta_network.h). The norm before it and the projection after it are the
// layer's attn_norm and attn_out.
struct DeltaNetWeights {
  ggml_tensor* qkv = nullptr;    // [n_embd, channels]: q, k and v before the convolution
  ggml_tensor* z = nullptr;      // [n_embd, inner]: gates of the output
  ggml_tensor* beta = nullptr;   // [n_embd, n_value_heads]; or beta and alpha are one tensor:
  ggml_tensor* alpha = nullptr;  // [n_embd, n_value_heads]
  ggml_tensor* beta_alpha =
      nullptr;                     // [n_embd, 2 n_value_heads]: for each key head its betas, then its alphas
  ggml_tensor* conv = nullptr;     // [kernel, channels]
  ggml_tensor* dt_bias = nullptr;  // [n_value_heads]: added to alpha
  ggml_tensor* a = nullptr;        // [n_value_heads]: negative
  ggml_tensor* norm = nullptr;     // [head_dim]: norm of a head's output
};

// Shapes are in ggml's order: a matrix [n_in, n_out] has n_in contiguous values per row. A null tensor is
// absent.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;  // [n_embd]
  ggml_tensor* attn_norm_bias = nullptr;
  ggml_tensor* qkv = nullptr;  // [n_embd, (n_heads + 2 n_kv_heads) head_dim], or three tensors:
  ggml_tensor* q = nullptr;    // [n_embd, n_heads * head_dim], twice as many with gates: Hparams::q_columns
  ggml_tensor* k = nullptr;    // [n_embd, n_kv_heads * head_dim]
  ggml_tensor* v = nullptr;    // [n_embd, n_kv_heads * head_dim]; may be k
  ggml_tensor* qkv_bias = nullptr;
  ggml_tensor* q_bias = nullptr;
  ggml_tensor* k_bias = nullptr;
  ggml_tensor* v_bias = nullptr;
  ggml_tensor* q_norm =
      nullptr;  // [head_dim], [head_dim, n_heads], or for norms of rows [n_heads * head_dim]
  ggml_tensor* k_norm = nullptr;    // as q_norm
  ggml_tensor* attn_out = nullptr;  // [n_heads * head_dim, n_embd]
  ggml_tensor* attn_out_bias = nullptr;
  ggml_tensor* attn_post_norm = nullptr;  // [n_embd]
  ggml_tensor* ffn_norm = nullptr;        // [n_embd]
  ggml_tensor* ffn_norm_bias = nullptr;
  DeltaNetWeights delta;          // for a layer without attention
  NetworkWeights ffn;             // for a layer without experts
  ggml_tensor* router = nullptr;  // [n_embd, n_experts]; null: the layer has no experts
  ggml_tensor* router_norm =
      nullptr;  // [n_embd]: norm of the router's input; null: it reads the experts' input
  ggml_tensor* router_bias = nullptr;  // [n_experts]
  ggml_tensor* choice_bias = nullptr;  // [n_experts]: changes which experts are chosen, not their weights
  NetworkWeights experts;              // n_experts networks
  NetworkWeights shared;               // for all rows; up may be null
  ggml_tensor* shared_gate = nullptr;  // [n_embd]: the sigmoid of its product weighs `shared`; null: 1
  // If experts stand next to another network: norms of their input, of their output, and of the network's
  // output.
  ggml_tensor* experts_norm = nullptr;          // [n_embd]
  ggml_tensor* experts_post_norm = nullptr;     // [n_embd]
  ggml_tensor* beside_post_norm = nullptr;      // [n_embd]
  std::vector<float> expert_scales;             // [n_experts]: factors of their outputs; empty: 1
  ggml_tensor* device_expert_scales = nullptr;  // the same on a device, which uses this instead; null: 1
  ggml_tensor* ffn_post_norm = nullptr;         // [n_embd]
  // For the layer's own embeddings: a gate, the projection back and its norm. Null if the layer has none.
  ggml_tensor* embd_gate = nullptr;       // [n_embd, n_layer_embd]
  ggml_tensor* embd_out = nullptr;        // [n_layer_embd, n_embd]
  ggml_tensor* embd_post_norm = nullptr;  // [n_embd]
  float scale = 1;                        // factor of the layer's output
};

// Says where a device's weights lie.
struct DeviceWeights {
  ggml_backend_buffer_type* memory = nullptr;       // device memory; null: there is no device
  ggml_backend_buffer_type* host_memory = nullptr;  // host memory that the device can read; null: any
  int n_host_layers = 0;                            // number of first layers whose matrices lie there
};

class Weights {
 public:
  // Takes every tensor of the file, and sets hparams.n_vocab and sink_logits. The file stays mapped as long
  // as the weights live. With a device, everything except the embedding lies there. Errors: a missing,
  // misshapen or unsupported tensor, or out of memory.
  static Result<std::unique_ptr<Weights>> load(std::shared_ptr<GgufFile> file, Hparams& hparams,
                                               WeightMode mode, int n_threads,
                                               const DeviceWeights& device = {});
  ~Weights();

  ggml_tensor* token_embedding() const { return embedding_; }  // [n_embd, n_vocab]
  ggml_tensor* output_norm() const { return output_norm_; }    // [n_embd]
  ggml_tensor* output_norm_bias() const { return output_norm_bias_; }
  ggml_tensor* output() const {
    return output_;
  }  // [n_embd, n_vocab]; the embedding (on a device: its copy) when tied
  ggml_tensor* output_bias() const { return output_bias_; }
  // [n_rot / 2], or null. With is_short, returns LongRoPE's factors for short sequences, if those of the
  // context are the long ones.
  ggml_tensor* rope_factors(bool is_short = false) const {
    return is_short ? short_rope_factors_ : rope_factors_;
  }
  bool has_short_rope_factors() const { return short_rope_factors_ != nullptr; }
  // The layers' own embeddings of tokens, and the projection of the model's embedding to them. Null: there
  // are none.
  ggml_tensor* layer_embedding() const { return layer_embedding_; }    // [n_layers n_layer_embd, n_vocab]
  ggml_tensor* layer_projection() const { return layer_projection_; }  // [n_embd, n_layers n_layer_embd]
  ggml_tensor* layer_projection_norm() const { return layer_projection_norm_; }  // [n_layer_embd]
  const LayerWeights& layer(int i) const { return layers_[i]; }

  std::int64_t bytes() const { return bytes_; }            // in memory, mapped pages included
  std::int64_t host_bytes() const { return host_bytes_; }  // bytes that a device reads from host memory
  // Returns whether norms of queries and keys differ from the file's (query_key_balance.h).
  bool balances_keys() const { return !key_factors_.empty(); }
  // Returns [d]: the factors of a KV head's key channels for that; empty: none.
  std::span<const float> key_factors(int layer, int kv_head) const;
  const std::string& type_name() const {
    return type_name_;
  }  // type of most matrix values in the file: "Q4_1"

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
  std::vector<KeyFactors> key_factors_;  // [n_layers] if norms differ from the file's
  std::string type_name_;
};

}  // namespace kvant
