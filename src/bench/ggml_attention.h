// Defines the rival in the attention benchmark: ggml with its own cache types, with and without flash
// attention. The graphs equal llama.cpp's graphs, so the times hold for llama.cpp, too.
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

// Describes a cache of llama.cpp: the types of K and V, and the attention graph (one of two). With a
// quantized V, llama.cpp requires flash attention.
struct GgmlCache {
  const char* name;  // name of the row, after "ggml:"
  const char* k;
  const char* v;
  bool flash;
};
inline constexpr GgmlCache kGgmlCaches[] = {
    {"f16", "f16", "f16", true},    {"f16-plain", "f16", "f16", false},
    {"q8_0", "q8_0", "q8_0", true}, {"q8_0-f16-plain", "q8_0", "f16", false},
    {"q4_0", "q4_0", "q4_0", true}, {"q4_0-f16-plain", "q4_0", "f16", false},
};

// Returns whether ggml can store heads of this size in both types. The types' block sizes must divide
// head_dim.
bool ggml_stores(const GgmlCache& cache, int head_dim);
// Returns the bytes of one layer's K and V.
double ggml_layer_bytes(const GgmlCache& cache, const AttentionHeads& shape, int context);

// Attends with one token like llama.cpp's decode graph (build_attn_mha), with F32 accumulation where ggml
// offers it. K is [context][n_kv_heads][head_dim].
//
// With flash attention, V has the shape of K, and the mask is F16. Without flash attention, V is stored
// transposed, [n_kv_heads][head_dim][context], and the mask is F32. Attention then takes three steps. K is
// multiplied by q, which is rounded to F16 for an F16 K and to Q8_0 otherwise. The softmax makes weights. V
// is multiplied by the weights, which are rounded to F16.
//
// Intermediate results share memory, as in llama.cpp. Appending is not included.
class GgmlAttention final : public AttentionContender {
 public:
  // Requires ggml_stores() for this head size. Returns an error if memory is short.
  static Result<std::unique_ptr<GgmlAttention>> make(const GgmlCache& cache, const AttentionHeads& shape,
                                                     const AttentionValues& values, int context, int n_layers,
                                                     int n_threads);
  ~GgmlAttention() override;

  Result<double> layer_seconds() override;
  double layer_bytes() const override { return ggml_layer_bytes(cache_, shape_, context_); }
  double bits() const override;
  int n_layers() const override { return n_layers_; }
  std::vector<std::string> kernels() const override { return {cache_.flash ? "ggml/flash" : "ggml/plain"}; }

  // Returns the output of the last layer, [n_heads * head_dim].
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
  // Holds the caches, q and the mask.
  ggml_context* inputs_ = nullptr;
  ggml_backend_buffer* memory_ = nullptr;
  // Holds the nodes of the graph.
  ggml_context* nodes_ = nullptr;
  ggml_gallocr* node_memory_ = nullptr;
  ggml_threadpool* threads_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* q_ = nullptr;
  ggml_tensor* mask_ = nullptr;
  ggml_tensor* output_ = nullptr;                  // output of the last layer
  std::vector<ggml_tensor*> k_caches_, v_caches_;  // [n_layers]
  std::vector<std::uint8_t> work_;
};

}  // namespace kvant
