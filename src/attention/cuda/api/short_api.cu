#include <algorithm>

#include "attention/cuda/api/head_dim.h"
#include "attention/cuda/api/page_source.h"
#include "attention/cuda/api/refusal.h"
#include "attention/cuda/decode/short_attention.h"
#include "attention/cuda/decode/short_kernel.cuh"
#include "cache/page_counts.h"

namespace kvant::cuda {
namespace {

constexpr float kLog2E = 1.44269504F;

ShortArgs short_args(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                     const kvant_decode_layer& layer, const AppendArgs* new_rows) {
  ShortArgs args{};
  args.tail_tokens = lengths.tail_tokens;
  args.tail = source_of(layer.tail, layer.layer);
  args.table_pages = pages_for(lengths.max_tail_tokens);
  args.first_tokens = lengths.first_tokens;
  args.group = shape.group;
  args.n_kv_heads = shape.n_kv_heads;
  args.q_type = number_type(layer.q_type);
  args.queries = {const_cast<void*>(layer.q),
                  layer.q_seq_stride,
                  layer.q_head_stride,
                  channels_or_all(layer.q_channels, shape.head_dim),
                  1,
                  nullptr,
                  0};
  if (new_rows != nullptr) {
    args.rows_type = new_rows->type;
    if (new_rows->queries.rows != nullptr) args.queries = new_rows->queries;
    for (const int side : {KVANT_KEY, KVANT_VALUE}) args.sides[side] = new_rows->sides[side];
  }
  args.softmax_scale_log2 = shape.softmax_scale * kLog2E;
  args.softcap_log2 = shape.score_softcap * kLog2E;
  args.sink_logits = layer.sink_logits;
  args.lse = layer.lse;
  args.out_hadamard = layer.out_hadamard;
  args.out_factors = layer.out_factors;
  args.out = layer.out;
  args.out_type = number_type(layer.out_type);
  args.out_channels = channels_or_all(layer.out_channels, shape.head_dim);
  args.out_seq_stride = layer.out_seq_stride;
  args.out_head_stride = layer.out_head_stride;
  return args;
}

// CTAs for each sequence and KV head, or 0: with a multiprocessor each there are too many. The general kernel
// has several on one.
int ctas_of(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu) {
  const std::int64_t n = std::int64_t{shape.n_seqs} * shape.n_kv_heads * query_passes(shape.group);
  const auto most = static_cast<int>(std::min<std::int64_t>(gpu.multiprocessors / n, kMaxShortCtas));
  static_assert(kShortWarps * kTileTokens == kPageTokens);  // so many have something to do
  return gpu.is_hopper ? std::min(most, pages_for(lengths.max_tail_tokens)) : std::min(most, 1);
}

}  // namespace

bool takes_short_kernel(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                        const Gpu& gpu) {
  const bool is_plain = lengths.sealed_pages == nullptr && lengths.protected_tokens == nullptr &&
                        lengths.tail_tokens != nullptr && shape.corrected == 0 && shape.sas == 0 &&
                        shape.max_queries <= 1 && lengths.query_begins == nullptr;
  if (!is_plain || lengths.max_tail_tokens <= 0) return false;
  const int n_ctas = ctas_of(shape, lengths, gpu);
  return n_ctas > 0 && lengths.max_tail_tokens <= std::max(kMaxShortTokens, kMaxSharedTokens * n_ctas);
}

kvant_status attend_short(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                          const kvant_decode_layer& layer, const AppendArgs* new_rows, const Gpu& gpu,
                          cudaStream_t stream) {
  const ShortArgs args = short_args(shape, lengths, layer, new_rows);
  const auto n_ctas = static_cast<unsigned>(ctas_of(shape, lengths, gpu));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {n_ctas, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(n_ctas, shape.n_kv_heads, shape.n_seqs * query_passes(shape.group));
  config.blockDim = dim3(kShortWarps * kLanes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = gpu.overlap_attributes() + (n_ctas > 1 ? 1 : 0);
  cudaError_t error = cudaSuccess;
  with_head_dim(shape.head_dim,
                [&](auto d) { error = cudaLaunchKernelEx(&config, short_kernel<d.value>, args); });
  return status_of(error);
}

}  // namespace kvant::cuda
