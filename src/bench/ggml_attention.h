// The rival in the attention benchmark: ggml on its own cache types, with flash attention and without.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "bench/attention_contender.h"

struct ggml_backend_buffer;
struct ggml_cgraph;
struct ggml_context;
struct ggml_gallocr;
struct ggml_tensor;
struct ggml_threadpool;

namespace kvant {

// A cache of llama.cpp, by the types of K and V, and which of its two graphs attends to it. A quantized V
// requires flash attention there.
struct GgmlCache {
  const char* name;  // the row's, after "ggml:"
  const char* k;
  const char* v;
  bool flash;
};
inline constexpr GgmlCache kGgmlCaches[] = {
    {"f16", "f16", "f16", true},    {"f16-plain", "f16", "f16", false},
    {"q8_0", "q8_0", "q8_0", true}, {"q8_0-f16-plain", "q8_0", "f16", false},
    {"q4_0", "q4_0", "q4_0", true}, {"q4_0-f16-plain", "q4_0", "f16", false},
};

// Whether ggml can store heads of this size in both types: their blocks must divide them.
bool ggml_stores(const GgmlCache& cache, int head_dim);
// Bytes of one layer's K and V.
double ggml_layer_bytes(const GgmlCache& cache, const AttentionHeads& shape, int context);

// Attention of one token as llama.cpp's decode graph has it (its build_attn_mha), accumulation in F32 where
// ggml offers it. K is [context][n_kv_heads][head_dim]. With flash attention V is so too, and the mask F16;
// without, V is kept transposed, [n_kv_heads][head_dim][context], the mask is F32, and there are three steps:
// the product of K with q (rounded to K's partner type, F16 for F16), the softmax, the product of V with the
// weights (rounded to F16). Intermediate results share memory as llama.cpp's do. Appending is not part of it.
class GgmlAttention final : public AttentionContender {
 public:
  // Requires that ggml stores the cache at this head size. An error when memory is short.
  static Result<std::unique_ptr<GgmlAttention>> make(const GgmlCache& cache, const AttentionHeads& shape,
                                                     const AttentionValues& values, int context, int n_layers,
                                                     int n_threads);
  ~GgmlAttention() override;

  Result<double> layer_seconds() override;
  double layer_bytes() const override { return ggml_layer_bytes(cache_, shape_, context_); }
  double bits() const override;
  int n_layers() const override { return n_layers_; }
  std::vector<std::string> kernels() const override { return {cache_.flash ? "ggml/flash" : "ggml/plain"}; }

  // [n_heads * head_dim], of the layer that ran last.
  std::span<const float> output() const;

 private:
  GgmlAttention(const GgmlCache& cache, const AttentionHeads& shape, int context, int n_layers,
                int n_threads);
  void make_inputs();
  void build();
  ggml_tensor* flash_layer(ggml_tensor* k, ggml_tensor* v);
  ggml_tensor* plain_layer(ggml_tensor* k, ggml_tensor* v);
  float scale() const;
  Status allocate();
  void fill(const AttentionValues& values);

  GgmlCache cache_;
  AttentionHeads shape_;
  int context_, n_layers_, n_threads_;
  ggml_context* inputs_ = nullptr;  // the caches, q and the mask
  ggml_backend_buffer* memory_ = nullptr;
  ggml_context* nodes_ = nullptr;  // of the graph
  ggml_gallocr* node_memory_ = nullptr;
  ggml_threadpool* threads_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* q_ = nullptr;
  ggml_tensor* mask_ = nullptr;
  ggml_tensor* output_ = nullptr;                  // of the last layer
  std::vector<ggml_tensor*> k_caches_, v_caches_;  // by layer
  std::vector<std::uint8_t> work_;
};

}  // namespace kvant
