// The rival in the attention benchmark: ggml with its own cache types, with and without flash attention.
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

// A cache of llama.cpp: the types of K and V, and which of its two attention graphs is used. A quantized V
// requires flash attention in llama.cpp.
struct GgmlCache {
  const char* name;  // the row's name, after "ggml:"
  const char* k;
  const char* v;
  bool flash;
};
inline constexpr GgmlCache kGgmlCaches[] = {
    {"f16", "f16", "f16", true},    {"f16-plain", "f16", "f16", false},
    {"q8_0", "q8_0", "q8_0", true}, {"q8_0-f16-plain", "q8_0", "f16", false},
    {"q4_0", "q4_0", "q4_0", true}, {"q4_0-f16-plain", "q4_0", "f16", false},
};

// Returns whether ggml can store heads of this size in both types: their block sizes must divide it.
bool ggml_stores(const GgmlCache& cache, int head_dim);
// Returns the bytes of one layer's K and V.
double ggml_layer_bytes(const GgmlCache& cache, const AttentionHeads& shape, int context);

// Attention of one token as in llama.cpp's decode graph (its build_attn_mha), with F32 accumulation where
// ggml offers it. K is [context][n_kv_heads][head_dim].
//
// With flash attention V has the same layout, and the mask is F16. Without it V is stored transposed,
// [n_kv_heads][head_dim][context], and the mask is F32. There are then three steps: the product of K with q
// (rounded to K's partner type, F16 for F16), the softmax, and the product of V with the weights (rounded to
// F16).
//
// Intermediate results share memory as llama.cpp's do. Appending is not included.
class GgmlAttention final : public AttentionContender {
 public:
  // Requires ggml_stores() at this head size. Returns an error if memory is short.
  static Result<std::unique_ptr<GgmlAttention>> make(const GgmlCache& cache, const AttentionHeads& shape,
                                                     const AttentionValues& values, int context, int n_layers,
                                                     int n_threads);
  ~GgmlAttention() override;

  Result<double> layer_seconds() override;
  double layer_bytes() const override { return ggml_layer_bytes(cache_, shape_, context_); }
  double bits() const override;
  int n_layers() const override { return n_layers_; }
  std::vector<std::string> kernels() const override { return {cache_.flash ? "ggml/flash" : "ggml/plain"}; }

  // [n_heads * head_dim]: the output of the last layer.
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
  ggml_context* inputs_ = nullptr;  // holds the caches, q and the mask
  ggml_backend_buffer* memory_ = nullptr;
  ggml_context* nodes_ = nullptr;  // the graph's nodes
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
