#include "calibrate/f32_layer.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>

#include "base/check.h"
#include "base/team.h"
#include "model/gguf_file.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

constexpr int kRowsAtOnce = 256;

// Parts one after the other; a missing one is so many zeros, unless all are missing.
struct JoinedPart {
  const ggml_tensor* tensor;
  std::size_t size;
};

// An F32 vector as the engine has it. Norms of queries and keys are balanced (model/query_key_balance.h),
// those in the file are not.
std::vector<float> loaded_values(const ggml_tensor* vector) {
  if (vector == nullptr) return {};
  KVANT_CHECK(vector->type == GGML_TYPE_F32, "a norm that wasn't expanded");
  std::vector<float> values(ggml_nelements(vector));
  ggml_backend_tensor_get(vector, values.data(), 0, ggml_nbytes(vector));
  return values;
}

std::vector<float> joined(const ModelParts& model, std::initializer_list<JoinedPart> parts, int n_threads) {
  const bool none =
      std::all_of(parts.begin(), parts.end(), [](const JoinedPart& p) { return p.tensor == nullptr; });
  std::vector<float> all;
  if (none) return all;
  for (const JoinedPart& part : parts) {
    std::vector<float> values = f32_values(model, part.tensor, n_threads);
    values.resize(part.size);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace

void f32_rows(const ModelParts& model, const ggml_tensor* weight, int first, int n, float* out) {
  const ggml_tensor* stored = model.file.tensor(ggml_get_name(weight));
  KVANT_CHECK(stored != nullptr, "a weight that is not in the model's file");
  const std::int64_t n_in = stored->ne[0];
  const std::size_t row_bytes = ggml_row_size(stored->type, n_in);
  const auto* bytes = static_cast<const char*>(model.file.tensor_data(stored)) + first * row_bytes;
  const auto to_float = ggml_get_type_traits(stored->type)->to_float;
  for (int r = 0; r < n; ++r, bytes += row_bytes, out += n_in) {
    if (stored->type == GGML_TYPE_F32) {
      std::copy_n(reinterpret_cast<const float*>(bytes), n_in, out);
    } else {
      to_float(bytes, out, n_in);
    }
  }
}

std::vector<float> embedded(const ModelParts& model, std::span<const std::int32_t> tokens) {
  const Hparams& h = model.hparams;
  std::vector<float> x(tokens.size() * h.n_embd);
  for (std::size_t r = 0; r < tokens.size(); ++r)
    f32_rows(model, model.weights.token_embedding(), tokens[r], 1, x.data() + r * h.n_embd);
  for (float& value : x) value *= h.embedding_scale;
  return x;
}

std::vector<float> f32_values(const ModelParts& model, const ggml_tensor* weight, int n_threads) {
  if (weight == nullptr) return {};
  const std::int64_t n_in = weight->ne[0];
  const auto n_out = static_cast<int>(ggml_nrows(weight));
  std::vector<float> values(static_cast<std::size_t>(n_in) * n_out);
  run_team(n_threads, [&](Team& team) {
    team.for_each((n_out + kRowsAtOnce - 1) / kRowsAtOnce, [&](int block) {
      const int first = block * kRowsAtOnce;
      f32_rows(model, weight, first, std::min(kRowsAtOnce, n_out - first), values.data() + first * n_in);
    });
  });
  return values;
}

F32Layer f32_layer(const ModelParts& model, int layer, int n_threads) {
  const Hparams& h = model.hparams;
  const LayerWeights& w = model.weights.layer(layer);
  const auto values = [&](const ggml_tensor* t) { return f32_values(model, t, n_threads); };
  const auto n_q = static_cast<std::size_t>(h.n_heads) * h.head_dim;
  const auto n_kv = static_cast<std::size_t>(h.n_kv_heads) * h.head_dim;
  const auto n_ff = static_cast<std::size_t>(h.n_ff);
  const std::size_t e = h.n_embd;
  F32Layer f;
  f.attn_norm = values(w.attn_norm);
  f.qkv = w.qkv != nullptr ? values(w.qkv)
                           : joined(model, {{w.q, n_q * e}, {w.k, n_kv * e}, {w.v, n_kv * e}}, n_threads);
  f.qkv_bias = w.qkv != nullptr
                   ? values(w.qkv_bias)
                   : joined(model, {{w.q_bias, n_q}, {w.k_bias, n_kv}, {w.v_bias, n_kv}}, n_threads);
  f.q_norm = loaded_values(w.q_norm);
  f.k_norm = loaded_values(w.k_norm);
  f.attn_out = values(w.attn_out);
  f.out_bias = values(w.attn_out_bias);
  f.attn_post_norm = values(w.attn_post_norm);
  f.ffn_norm = values(w.ffn_norm);
  f.up = values(w.ffn.up);
  f.up_bias = values(w.ffn.up_bias);
  f.gate = values(w.ffn.gate);
  f.gate_bias = values(w.ffn.gate_bias);
  if (w.ffn.gate == nullptr) {  // one weight holds both
    f.gate.assign(f.up.begin(), f.up.begin() + static_cast<std::ptrdiff_t>(n_ff * e));
    f.up.erase(f.up.begin(), f.up.begin() + static_cast<std::ptrdiff_t>(n_ff * e));
  }
  f.down = values(w.ffn.down);
  f.down_bias = values(w.ffn.down_bias);
  f.ffn_post_norm = values(w.ffn_post_norm);
  return f;
}

}  // namespace kvant
