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

// JoinedPart is one of several tensors that are joined. A missing tensor counts as `size` zeros, unless all
// tensors are missing.
struct JoinedPart {
  const ggml_tensor* tensor;
  std::size_t size;
};

// Returns an F32 vector as the engine has it. The engine balances the norms of queries and keys
// (model/query_key_balance.h), so the vectors in the file differ.
std::vector<float> loaded_values(const ggml_tensor* vector) {
  if (vector == nullptr) return {};
  KVANT_CHECK(vector->type == GGML_TYPE_F32, "a norm that wasn't expanded");
  std::vector<float> values(ggml_nelements(vector));
  ggml_backend_tensor_get(vector, values.data(), 0, ggml_nbytes(vector));
  return values;
}

// Writes all values of a weight to `to`, as F32.
void expand(const ModelParts& model, const ggml_tensor* weight, int n_threads, float* to) {
  const std::int64_t n_in = weight->ne[0];
  const auto n_out = static_cast<int>(ggml_nrows(weight));
  run_team(n_threads, [&](Team& team) {
    team.for_each((n_out + kRowsAtOnce - 1) / kRowsAtOnce, [&](int block) {
      const int first = block * kRowsAtOnce;
      f32_rows(model, weight, first, std::min(kRowsAtOnce, n_out - first), to + first * n_in);
    });
  });
}

void join(const ModelParts& model, std::initializer_list<JoinedPart> parts, int n_threads,
          std::vector<float>& all) {
  const bool none =
      std::all_of(parts.begin(), parts.end(), [](const JoinedPart& p) { return p.tensor == nullptr; });
  std::size_t size = 0;
  for (const JoinedPart& part : parts) size += none ? 0 : part.size;
  all.resize(size);
  if (none) return;
  float* to = all.data();
  for (const JoinedPart& part : parts) {
    if (part.tensor == nullptr) {
      std::fill_n(to, part.size, 0.0F);
    } else {
      KVANT_CHECK(ggml_nelements(part.tensor) == static_cast<std::int64_t>(part.size),
                  "a part of a different size");
      expand(model, part.tensor, n_threads, to);
    }
    to += part.size;
  }
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
  std::vector<float> values(ggml_nelements(weight));
  expand(model, weight, n_threads, values.data());
  return values;
}

void load_f32_layer(const ModelParts& model, int layer, int n_threads, F32Layer& f) {
  const Hparams& h = model.hparams;
  const LayerWeights& w = model.weights.layer(layer);
  const auto values = [&](const ggml_tensor* t) { return f32_values(model, t, n_threads); };
  const auto fill = [&](std::vector<float>& to, const ggml_tensor* t) {
    to.resize(t == nullptr ? 0 : ggml_nelements(t));
    if (t != nullptr) expand(model, t, n_threads, to.data());
  };
  const auto n_q = static_cast<std::size_t>(h.n_heads) * h.head_dim;
  const auto n_kv = static_cast<std::size_t>(h.n_kv_heads) * h.head_dim;
  const auto n_ff = static_cast<std::size_t>(h.n_ff);
  const std::size_t e = h.n_embd;
  f.norms.clear();
  const auto take_norms = [&](LayerSteps steps) {
    for (const LayerStep& step : steps) {
      const auto* norm = std::get_if<Norm>(&step);
      if (norm == nullptr) continue;
      for (const WeightPlace place : {norm->weights.weight, norm->weights.bias})
        if (place != nullptr) f.norms.emplace_back(place, values(w.*place));
    }
  };
  take_norms(h.steps_to_attention(layer));
  for (const LayerSteps& steps : h.steps_after_attention(/*has_experts=*/false)) take_norms(steps);
  if (w.qkv != nullptr) {
    fill(f.qkv, w.qkv);
    fill(f.qkv_bias, w.qkv_bias);
  } else {
    join(model, {{w.q, n_q * e}, {w.k, n_kv * e}, {w.v, n_kv * e}}, n_threads, f.qkv);
    join(model, {{w.q_bias, n_q}, {w.k_bias, n_kv}, {w.v_bias, n_kv}}, n_threads, f.qkv_bias);
  }
  f.q_norm = loaded_values(w.q_norm);
  f.k_norm = loaded_values(w.k_norm);
  fill(f.attn_out, w.attn_out);
  f.out_bias = values(w.attn_out_bias);
  fill(f.up, w.ffn.up);
  f.up_bias = values(w.ffn.up_bias);
  fill(f.gate, w.ffn.gate);
  f.gate_bias = values(w.ffn.gate_bias);
  if (w.ffn.gate == nullptr && !h.architecture->unit.ungated) {  // one weight holds both
    f.gate.assign(f.up.begin(), f.up.begin() + static_cast<std::ptrdiff_t>(n_ff * e));
    f.up.erase(f.up.begin(), f.up.begin() + static_cast<std::ptrdiff_t>(n_ff * e));
  }
  fill(f.down, w.ffn.down);
  f.down_bias = values(w.ffn.down_bias);
}

}  // namespace kvant
