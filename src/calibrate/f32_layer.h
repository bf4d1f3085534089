// F32Layer holds the weights of one layer, expanded to F32, for gradients on the CPU. The caller loads the
// layers in turn into the same object, because a whole model in F32 would not fit into memory.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/layer_program.h"
#include "model/model_parts.h"

struct ggml_tensor;

namespace kvant {

// Matrices are [n_out, n_in], with n_in contiguous values. An empty vector means that the layer does not have
// the weight.
struct F32Layer {
  std::vector<float> qkv, qkv_bias;       // [(n_heads + 2 n_kv_heads) * head_dim, n_embd]
  std::vector<float> q_norm, k_norm;      // the shapes are those in LayerWeights
  std::vector<float> attn_out, out_bias;  // [n_embd, n_heads * head_dim]
  std::vector<float> gate, gate_bias;     // [n_ff, n_embd]
  std::vector<float> up, up_bias;         // [n_ff, n_embd]
  std::vector<float> down, down_bias;     // [n_embd, n_ff]
  // Holds each norm's weights [n_embd] with their place in LayerWeights.
  std::vector<std::pair<WeightPlace, std::vector<float>>> norms;

  std::span<const float> of(WeightPlace place) const {
    for (const auto& [at, values] : norms)
      if (at == place) return values;
    return {};
  }
};

// Loads a layer of the model into `f`. The caller should use the same `f` for all layers, because new memory
// for each took a tenth of a pass's time.
void load_f32_layer(const ModelParts& model, int layer, int n_threads, F32Layer& f);

// Writes rows [first, first + n) of a matrix to `out`, [n, n_in].
void f32_rows(const ModelParts& model, const ggml_tensor* weight, int first, int n, float* out);

// Returns the inputs of the first layer for the tokens, [n_tokens, n_embd].
std::vector<float> embedded(const ModelParts& model, std::span<const std::int32_t> tokens);

// Returns all values of a weight from the model's file, because in memory the weight may be repacked or lie
// on a device. A null weight gives an empty vector.
std::vector<float> f32_values(const ModelParts& model, const ggml_tensor* weight, int n_threads);

}  // namespace kvant
