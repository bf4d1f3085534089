#include <cuda_runtime.h>

#include "device/cuda/common/caller_pages.h"
#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/protect/protect_kernel.cuh"
#include "device/cuda/protect/score_sums_kernel.cuh"
#include "device/cuda/protect/token_weights_kernel.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

Reason fault_of(const kvant_decode_shape& shape) {
  return first_failing({
      {shape.n_kv_heads > 0 && shape.n_kv_heads <= kMaxKvHeads, "shape.n_kv_heads must be 1 to 64"},
      {shape.group > 0 && shape.group <= kMaxGroup, "shape.group must be 1 to 16"},
  });
}

Reason fault_of(const kvant_token_weights& w) {
  if (const Reason reason = device::fault_of_weights(w)) return reason;
  return first_failing({
      {(w.q_token_stride | w.q_head_stride | w.key_token_stride | w.key_head_stride) % 8 == 0,
       "weights: strides of q and keys must be multiples of 8"},
      {is_aligned(w.q, 16) && is_aligned(w.keys, 16), "weights: q and keys must be 16-byte aligned"},
  });
}

int grid_size(int n, int of_part) {
  return (n + of_part - 1) / of_part;
}

template <int D>
void launch_weights(const TokenWeightsArgs& args, bool finds_lse, int n_kv_heads, cudaStream_t stream) {
  if (finds_lse) {
    const dim3 rows(grid_size(args.n_queries * args.group, kRowSets * kScoredRows), n_kv_heads);
    score_sums_kernel<D><<<rows, kScoreSumThreads, 0, stream>>>(args);
  }
  const dim3 tokens(grid_size(args.n_tokens, kWeighedTokens), n_kv_heads);
  token_weights_kernel<D><<<tokens, kWeighThreads, 0, stream>>>(args);
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

kvant_status kvant_weigh_tokens(const kvant_decode_shape* caller_shape,
                                const kvant_token_weights* caller_weights, kvant_stream stream) {
  kvant_decode_shape shape;
  kvant_token_weights w;
  if (const Reason reason = read_struct(caller_shape, &shape)) return refuse_argument(reason);
  if (const Reason reason = read_struct(caller_weights, &w)) return refuse_argument(reason);
  if (const Reason reason = fault_of(shape)) return refuse_argument(reason);
  if (const Reason reason = fault_of(w)) return refuse_argument(reason);
  if (!is_head_dim(shape.head_dim) || shape.head_dim > 256)
    return refuse(KVANT_UNSUPPORTED, "head_dim must be 64, 128 or 256 where tokens are weighed or protected");
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  const bool finds_lse = w.found_lse != nullptr;
  const TokenWeightsArgs args{.n_queries = w.n_queries,
                              .n_tokens = w.n_tokens,
                              .n_visible = w.n_visible,
                              .group = shape.group,
                              .softmax_scale = shape.softmax_scale,
                              .softcap = shape.score_softcap,
                              .q_type = number_type(w.q_type),
                              .q = w.q,
                              .keys = w.keys,
                              .q_token_stride = w.q_token_stride,
                              .q_head_stride = w.q_head_stride,
                              .key_token_stride = w.key_token_stride,
                              .key_head_stride = w.key_head_stride,
                              .lse = finds_lse ? w.found_lse : const_cast<float*>(w.lse),
                              .lse_token_stride = w.lse_token_stride,
                              .lse_head_stride = w.lse_head_stride,
                              .weights = w.weights,
                              .weight_head_stride = w.weight_head_stride};
  with_head_dim_up_to_256(shape.head_dim, [&](auto d) {
    launch_weights<d.value>(args, finds_lse, shape.n_kv_heads, static_cast<cudaStream_t>(stream));
  });
  return launch_status();
}

kvant_status kvant_protect(const kvant_decode_shape* caller_shape, const kvant_decode_layer* caller_layer,
                           const kvant_protected_rows* caller_rows, kvant_stream stream) {
  kvant_decode_shape shape;
  kvant_decode_layer layer;
  kvant_protected_rows rows;
  if (const Reason reason = read_struct(caller_shape, &shape)) return refuse_argument(reason);
  if (const Reason reason = read_struct(caller_layer, &layer)) return refuse_argument(reason);
  if (const Reason reason = read_struct(caller_rows, &rows)) return refuse_argument(reason);
  if (const Reason reason = kvant::device::fault_of_protected(layer, rows)) return refuse_argument(reason);
  if (!is_head_dim(shape.head_dim) || shape.head_dim > 256)
    return refuse(KVANT_UNSUPPORTED, "head_dim must be 64, 128 or 256 where tokens are weighed or protected");
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  const ProtectArgs args{source_of(layer.tail, layer.layer),
                         source_of(layer.protected_pages, layer.layer),
                         rows.seq,
                         rows.head,
                         rows.tail_token,
                         rows.protected_token};
  with_head_dim_up_to_256(shape.head_dim, [&](auto d) {
    protect_kernel<d.value><<<dim3(rows.n_rows, 2), d.value, 0, static_cast<cudaStream_t>(stream)>>>(args);
  });
  return launch_status();
}

}  // extern "C"
