#include "bench/ggml_attention.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/geometry.h"
#include "model/library_log.h"

namespace kvant {
namespace {

ggml_type type_called(const std::string& name) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  KVANT_CHECK(false, "a cache type of kGgmlCacheTypes");
}

// Writes `page` [kPageTokens, row] to the cache [context, row], again and again.
void fill_cache(ggml_tensor* cache, const std::vector<float>& page) {
  const std::int64_t row = cache->ne[0];
  std::vector<char> encoded(kPageTokens * cache->nb[1]);
  ggml_quantize_chunk(cache->type, page.data(), encoded.data(), 0, kPageTokens, row, nullptr);
  const std::size_t all = ggml_nbytes(cache);
  for (std::size_t done = 0; done < all; done += encoded.size()) {
    std::memcpy(static_cast<char*>(cache->data) + done, encoded.data(), std::min(encoded.size(), all - done));
  }
}

}  // namespace

bool ggml_stores(const std::string& type, int head_dim) {
  return head_dim % ggml_blck_size(type_called(type)) == 0;
}

double ggml_layer_bytes(const std::string& type, const AttentionShape& shape, int context) {
  const std::size_t row = ggml_row_size(type_called(type), std::int64_t{shape.head_dim} * shape.n_kv_heads);
  return 2.0 * context * static_cast<double>(row);
}

double GgmlAttention::bits() const {
  return 8.0 * static_cast<double>(ggml_row_size(type_called(type_), shape_.head_dim)) / shape_.head_dim;
}

GgmlAttention::GgmlAttention(std::string type, const AttentionShape& shape, int context, int n_layers,
                             int n_threads)
    : type_(std::move(type)), shape_(shape), context_(context), n_layers_(n_layers), n_threads_(n_threads) {
  quiet_library_log();
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  threads_ = ggml_threadpool_new(&params);
  KVANT_CHECK(threads_ != nullptr, "no thread pool");
  build();
}

GgmlAttention::~GgmlAttention() {
  ggml_threadpool_free(threads_);
  ggml_backend_buffer_free(memory_);
  ggml_free(tensors_);
}

Result<std::unique_ptr<GgmlAttention>> GgmlAttention::make(const std::string& type,
                                                           const AttentionShape& shape,
                                                           const AttentionValues& values, int context,
                                                           int n_layers, int n_threads) {
  std::unique_ptr<GgmlAttention> made(new GgmlAttention(type, shape, context, n_layers, n_threads));
  KVANT_RETURN_IF_ERROR(made->allocate());
  made->fill(values);
  return made;
}

// All layers in one graph, as in a model's.
void GgmlAttention::build() {
  const std::size_t n_tensors = 5 * static_cast<std::size_t>(n_layers_) + 2;
  tensors_ = ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false),
                        nullptr, /*no_alloc=*/true});
  KVANT_CHECK(tensors_ != nullptr, "no memory for a graph");
  graph_ = ggml_new_graph_custom(tensors_, n_tensors, /*grads=*/false);
  const ggml_type type = type_called(type_);
  const std::int64_t d = shape_.head_dim, n_kv = shape_.n_kv_heads;
  q_ = ggml_new_tensor_3d(tensors_, GGML_TYPE_F32, d, 1, shape_.n_heads);
  mask_ = ggml_new_tensor_2d(tensors_, GGML_TYPE_F16, context_, 1);
  const auto heads_of = [&](ggml_tensor* cache) {
    return ggml_view_3d(tensors_, cache, d, context_, n_kv, cache->nb[1], ggml_row_size(type, d), 0);
  };
  for (int layer = 0; layer < n_layers_; ++layer) {
    k_caches_.push_back(ggml_new_tensor_2d(tensors_, type, d * n_kv, context_));
    v_caches_.push_back(ggml_new_tensor_2d(tensors_, type, d * n_kv, context_));
    output_ = ggml_flash_attn_ext(tensors_, q_, heads_of(k_caches_.back()), heads_of(v_caches_.back()), mask_,
                                  1.0F / std::sqrt(static_cast<float>(d)), /*max_bias=*/0, /*softcap=*/0);
    ggml_prec_set_acc(output_, GGML_PREC_F32);
    ggml_build_forward_expand(graph_, output_);
  }
}

Status GgmlAttention::allocate() {
  memory_ = ggml_backend_alloc_ctx_tensors_from_buft(tensors_, ggml_backend_cpu_buffer_type());
  if (memory_ != nullptr) return {};
  return error(
      "out of memory: ggml's {} cache of {} layers of {} tokens takes {:.0f} MiB; use a smaller --ctx", type_,
      n_layers_, context_, n_layers_ * layer_bytes() / (1 << 20));
}

void GgmlAttention::fill(const AttentionValues& values) {
  for (ggml_tensor* cache : k_caches_) fill_cache(cache, values.k);
  for (ggml_tensor* cache : v_caches_) fill_cache(cache, values.v);
  std::memcpy(q_->data, values.q.data(), ggml_nbytes(q_));
  std::memset(mask_->data, 0, ggml_nbytes(mask_));  // every token is visible
}

Result<double> GgmlAttention::layer_seconds() {
  ggml_cplan plan = ggml_graph_plan(graph_, n_threads_, threads_);
  if (work_.size() < plan.work_size) work_.resize(plan.work_size);
  plan.work_data = work_.data();
  const auto start = std::chrono::steady_clock::now();
  const ggml_status status = ggml_graph_compute(graph_, &plan);
  const auto end = std::chrono::steady_clock::now();
  if (status != GGML_STATUS_SUCCESS) return error("out of memory while ggml attends");
  return std::chrono::duration<double>(end - start).count() / n_layers_;
}

std::span<const float> GgmlAttention::output() const {
  return {static_cast<const float*>(output_->data), static_cast<std::size_t>(ggml_nelements(output_))};
}

}  // namespace kvant
