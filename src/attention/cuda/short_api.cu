#include "attention/cuda/head_dim.h"
#include "attention/cuda/page_source.h"
#include "attention/cuda/refusal.h"
#include "attention/cuda/short_attention.h"
#include "attention/cuda/short_kernel.cuh"

namespace kvant::cuda {
namespace {

constexpr float kLog2E = 1.44269504F;

ShortArgs short_args(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                     const kvant_decode_layer& layer, const AppendArgs* new_rows) {
  ShortArgs args{};
  args.tail_tokens = lengths.tail_tokens;
  args.tail = source_of(layer.tail, layer.layer);
  args.first_tokens = lengths.first_tokens;
  args.group = shape.group;
  args.n_kv_heads = shape.n_kv_heads;
  args.q_f32 = layer.q_type == KVANT_F32 ? 1 : 0;
  args.queries = {const_cast<void*>(layer.q), layer.q_seq_stride, layer.q_head_stride, 1, nullptr, 0};
  if (new_rows != nullptr) {
    args.rows_f32 = new_rows->is_f32;
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
  args.out_f32 = layer.out_type == KVANT_F32 ? 1 : 0;
  args.out_seq_stride = layer.out_seq_stride;
  args.out_head_stride = layer.out_head_stride;
  return args;
}

}  // namespace

bool takes_short_kernel(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                        const Gpu& gpu) {
  const bool is_plain = lengths.sealed_pages == nullptr && lengths.protected_tokens == nullptr &&
                        lengths.tail_tokens != nullptr && shape.corrected == 0 && shape.sas == 0;
  const bool is_short = lengths.max_tail_tokens > 0 && lengths.max_tail_tokens <= kMaxShortTokens;
  // A multiprocessor each: of more, the general kernel has several at a time.
  const std::int64_t n_ctas =
      std::int64_t{shape.n_seqs} * shape.n_kv_heads * query_passes(shape.group);
  return is_plain && is_short && n_ctas <= gpu.multiprocessors;
}

kvant_status attend_short(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                          const kvant_decode_layer& layer, const AppendArgs* new_rows, const Gpu& gpu,
                          cudaStream_t stream) {
  const ShortArgs args = short_args(shape, lengths, layer, new_rows);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.n_kv_heads, shape.n_seqs, query_passes(shape.group));
  config.blockDim = dim3(kShortWarps * kLanes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = gpu.overlap_attributes();
  cudaError_t error = cudaSuccess;
  with_head_dim(shape.head_dim,
                [&](auto d) { error = cudaLaunchKernelEx(&config, short_kernel<d.value>, args); });
  return status_of(error);
}

}  // namespace kvant::cuda
