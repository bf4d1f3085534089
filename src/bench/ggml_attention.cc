#include "bench/ggml_attention.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/geometry.h"
#include "model/library_log.h"

namespace kvant {
namespace {

constexpr std::size_t kNodesPerLayer = 8;

ggml_type type_called(std::string_view name) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  KVANT_CHECK(false, "a cache type of kGgmlCaches");
}

double bits_of(const char* type, int head_dim) {
  return 8.0 * static_cast<double>(ggml_row_size(type_called(type), head_dim)) / head_dim;
}

// Fills `cache`, [context][row], with repetitions of `page`, [kPageTokens][row].
void fill_cache(ggml_tensor* cache, const std::vector<float>& page) {
  const std::int64_t row = cache->ne[0];
  std::vector<char> encoded(kPageTokens * cache->nb[1]);
  ggml_quantize_chunk(cache->type, page.data(), encoded.data(), 0, kPageTokens, row, nullptr);
  const std::size_t all = ggml_nbytes(cache);
  for (std::size_t done = 0; done < all; done += encoded.size()) {
    std::memcpy(static_cast<char*>(cache->data) + done, encoded.data(), std::min(encoded.size(), all - done));
  }
}

// Fills a transposed F16 cache, [row][context], with repetitions of `page`, [kPageTokens][row].
void fill_transposed(ggml_tensor* cache, const std::vector<float>& page) {
  const std::int64_t context = cache->ne[0], row = cache->ne[1];
  for (std::int64_t c = 0; c < row; ++c) {
    auto* tokens = reinterpret_cast<ggml_fp16_t*>(static_cast<char*>(cache->data) + c * cache->nb[1]);
    for (std::int64_t t = 0; t < context; ++t) tokens[t] = ggml_fp32_to_fp16(page[t % kPageTokens * row + c]);
  }
}

}  // namespace

bool ggml_stores(const GgmlCache& cache, int head_dim) {
  return head_dim % ggml_blck_size(type_called(cache.k)) == 0 &&
         head_dim % ggml_blck_size(type_called(cache.v)) == 0;
}

double ggml_layer_bytes(const GgmlCache& cache, const AttentionHeads& shape, int context) {
  const std::int64_t row = std::int64_t{shape.head_dim} * shape.n_kv_heads;
  return static_cast<double>(context) * static_cast<double>(ggml_row_size(type_called(cache.k), row) +
                                                            ggml_row_size(type_called(cache.v), row));
}

double GgmlAttention::bits() const {
  return (bits_of(cache_.k, shape_.head_dim) + bits_of(cache_.v, shape_.head_dim)) / 2;
}

GgmlAttention::GgmlAttention(const GgmlCache& cache, const AttentionHeads& shape, int context, int n_layers,
                             int n_threads)
    : cache_(cache), shape_(shape), context_(context), n_layers_(n_layers), n_threads_(n_threads) {
  quiet_library_log();
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  threads_ = ggml_threadpool_new(&params);
  KVANT_CHECK(threads_ != nullptr, "no thread pool");
  make_inputs();
  build();
}

GgmlAttention::~GgmlAttention() {
  ggml_threadpool_free(threads_);
  ggml_gallocr_free(node_memory_);
  ggml_backend_buffer_free(memory_);
  ggml_free(nodes_);
  ggml_free(inputs_);
}

Result<std::unique_ptr<GgmlAttention>> GgmlAttention::make(const GgmlCache& cache,
                                                           const AttentionHeads& shape,
                                                           const AttentionValues& values, int context,
                                                           int n_layers, int n_threads) {
  std::unique_ptr<GgmlAttention> made(new GgmlAttention(cache, shape, context, n_layers, n_threads));
  KVANT_RETURN_IF_ERROR(made->allocate());
  made->fill(values);
  return made;
}

void GgmlAttention::make_inputs() {
  const std::size_t n_tensors = 2 * static_cast<std::size_t>(n_layers_) + 2;
  inputs_ = ggml_init({n_tensors * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true});
  KVANT_CHECK(inputs_ != nullptr, "no memory for tensors");
  const std::int64_t row = std::int64_t{shape_.head_dim} * shape_.n_kv_heads;
  q_ = ggml_new_tensor_3d(inputs_, GGML_TYPE_F32, shape_.head_dim, 1, shape_.n_heads);
  mask_ = ggml_new_tensor_2d(inputs_, cache_.flash ? GGML_TYPE_F16 : GGML_TYPE_F32, context_, 1);
  for (int layer = 0; layer < n_layers_; ++layer) {
    k_caches_.push_back(ggml_new_tensor_2d(inputs_, type_called(cache_.k), row, context_));
    v_caches_.push_back(cache_.flash ? ggml_new_tensor_2d(inputs_, type_called(cache_.v), row, context_)
                                     : ggml_new_tensor_2d(inputs_, type_called(cache_.v), context_, row));
  }
}

// Puts all layers into one graph, as llama.cpp does for a model.
void GgmlAttention::build() {
  const std::size_t n_nodes = kNodesPerLayer * static_cast<std::size_t>(n_layers_);
  nodes_ = ggml_init({n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false), nullptr,
                      /*no_alloc=*/true});
  KVANT_CHECK(nodes_ != nullptr, "no memory for a graph");
  graph_ = ggml_new_graph_custom(nodes_, n_nodes, /*grads=*/false);
  for (int layer = 0; layer < n_layers_; ++layer) {
    output_ = cache_.flash ? flash_layer(k_caches_[layer], v_caches_[layer])
                           : plain_layer(k_caches_[layer], v_caches_[layer]);
    ggml_build_forward_expand(graph_, output_);
  }
  ggml_set_output(output_);
}

ggml_tensor* GgmlAttention::flash_layer(ggml_tensor* k, ggml_tensor* v) {
  const auto heads_of = [&](ggml_tensor* cache) {  // [n_kv_heads][context][head_dim]
    return ggml_view_3d(nodes_, cache, shape_.head_dim, context_, shape_.n_kv_heads, cache->nb[1],
                        ggml_row_size(cache->type, shape_.head_dim), 0);
  };
  ggml_tensor* out = ggml_flash_attn_ext(nodes_, q_, heads_of(k), heads_of(v), mask_, scale(), /*max_bias=*/0,
                                         /*softcap=*/0);
  ggml_prec_set_acc(out, GGML_PREC_F32);
  return out;
}

ggml_tensor* GgmlAttention::plain_layer(ggml_tensor* k, ggml_tensor* v) {
  const std::int64_t d = shape_.head_dim, n_kv = shape_.n_kv_heads;
  ggml_tensor* k_heads = ggml_view_3d(nodes_, k, d, context_, n_kv, k->nb[1], ggml_row_size(k->type, d), 0);
  ggml_tensor* v_heads = ggml_view_3d(nodes_, v, context_, d, n_kv, v->nb[1], d * v->nb[1], 0);
  ggml_tensor* scores = ggml_mul_mat(nodes_, k_heads, q_);  // [n_heads][1][context]
  ggml_prec_set_acc(scores, GGML_PREC_F32);
  ggml_tensor* weights = ggml_soft_max_ext(nodes_, scores, mask_, scale(), /*max_bias=*/0);
  ggml_tensor* out = ggml_permute(nodes_, ggml_mul_mat(nodes_, v_heads, weights), 0, 2, 1, 3);
  return ggml_cont_2d(nodes_, out, d * shape_.n_heads, 1);
}

float GgmlAttention::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
}

Status GgmlAttention::allocate() {
  memory_ = ggml_backend_alloc_ctx_tensors_from_buft(inputs_, ggml_backend_cpu_buffer_type());
  node_memory_ = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
  if (memory_ != nullptr && ggml_gallocr_alloc_graph(node_memory_, graph_)) return {};
  return error(
      "out of memory: ggml's {} cache of {} layers of {} tokens takes {:.0f} MiB; use a smaller --ctx",
      cache_.name, n_layers_, context_, n_layers_ * layer_bytes() / (1 << 20));
}

void GgmlAttention::fill(const AttentionValues& values) {
  for (ggml_tensor* cache : k_caches_) fill_cache(cache, values.k);
  for (ggml_tensor* cache : v_caches_) {
    if (cache_.flash) {
      fill_cache(cache, values.v);
    } else {
      fill_transposed(cache, values.v);
    }
  }
  std::memcpy(q_->data, values.q.data(), ggml_nbytes(q_));
  std::memset(mask_->data, 0, ggml_nbytes(mask_));  // Every token is visible.
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
