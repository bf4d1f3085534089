// The rival in the attention benchmark: ggml's flash attention on its own cache types.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "bench/attention_contender.h"

struct ggml_backend_buffer;
struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;
struct ggml_threadpool;

namespace kvant {

// The cache types that are run. The rows are called "ggml:f16" and so on.
inline constexpr const char* kGgmlCacheTypes[] = {"f16", "q8_0", "q4_0"};

// Whether ggml can store heads of this size in the type: its blocks must divide them.
bool ggml_stores(const std::string& type, int head_dim);
// Bytes of one layer's K and V.
double ggml_layer_bytes(const std::string& type, const AttentionShape& shape, int context);

// Attention of one token as llama.cpp's decode graph has it: K and V as [context][n_kv_heads][head_dim], a
// mask, accumulation in F32 where ggml offers it. Appending is not part of it.
class GgmlAttention final : public AttentionContender {
 public:
  // Requires that ggml stores the type at this head size. An error when memory is short.
  static Result<std::unique_ptr<GgmlAttention>> make(const std::string& type, const AttentionShape& shape,
                                                     const AttentionValues& values, int context, int n_layers,
                                                     int n_threads);
  ~GgmlAttention() override;

  Result<double> layer_seconds() override;
  double layer_bytes() const override { return ggml_layer_bytes(type_, shape_, context_); }
  double bits() const override;
  int n_layers() const override { return n_layers_; }
  std::vector<std::string> kernels() const override { return {"ggml"}; }

  // [n_heads * head_dim], of the layer that ran last.
  std::span<const float> output() const;

 private:
  GgmlAttention(std::string type, const AttentionShape& shape, int context, int n_layers, int n_threads);
  void build();
  Status allocate();
  void fill(const AttentionValues& values);

  std::string type_;
  AttentionShape shape_;
  int context_, n_layers_, n_threads_;
  ggml_context* tensors_ = nullptr;
  ggml_backend_buffer* memory_ = nullptr;
  ggml_threadpool* threads_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* q_ = nullptr;
  ggml_tensor* mask_ = nullptr;
  ggml_tensor* output_ = nullptr;                  // of the last layer
  std::vector<ggml_tensor*> k_caches_, v_caches_;  // by layer
  std::vector<std::uint8_t> work_;
};

}  // namespace kvant
