// F32Layer: the weights of one layer, expanded to F32.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/layer_program.h"
#include "model/model_parts.h"

struct ggml_tensor;

namespace kvant {

// Matrices are [n_out, n_in], n_in contiguous. Empty: the layer has none.
struct F32Layer {
  std::vector<float> qkv, qkv_bias;       // [(n_heads + 2 n_kv_heads) head_dim, n_embd]
  std::vector<float> q_norm, k_norm;      // as LayerWeights has them
  std::vector<float> attn_out, out_bias;  // [n_embd, n_heads * head_dim]
  std::vector<float> gate, gate_bias;     // [n_ff, n_embd]
  std::vector<float> up, up_bias;         // [n_ff, n_embd]
  std::vector<float> down, down_bias;     // [n_embd, n_ff]
  // Weights of norms [n_embd], by their place in LayerWeights.
  std::vector<std::pair<WeightPlace, std::vector<float>>> norms;

  std::span<const float> of(WeightPlace place) const {
    for (const auto& [at, values] : norms)
      if (at == place) return values;
    return {};
  }
};

// Turns `f` into a layer of the model. Its memory stays from layer to layer: new pages for each took a tenth
// of a pass's time.
void load_f32_layer(const ModelParts& model, int layer, int n_threads, F32Layer& f);

// Rows [first, first + n) of a matrix, [n, n_in].
void f32_rows(const ModelParts& model, const ggml_tensor* weight, int first, int n, float* out);

// What the first layer gets of tokens, [n_tokens, n_embd].
std::vector<float> embedded(const ModelParts& model, std::span<const std::int32_t> tokens);

// All values of a weight, from the model's file: in memory it may be repacked, or on a device. Null: none.
std::vector<float> f32_values(const ModelParts& model, const ggml_tensor* weight, int n_threads);

}  // namespace kvant
