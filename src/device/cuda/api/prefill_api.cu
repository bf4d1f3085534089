#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/common/caller_pages.h"
#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/rows/dequantize_kernel.cuh"
#include "device/cuda/rows/merge_kernel.cuh"
#include "device/cuda/rows/page_decodings.h"
#include "device/cuda/rows/transform_kernel.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

Reason fault_of(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                const kvant_decode_layer& layer, const kvant_dequantization& d) {
  if (const Reason reason = device::fault_of_dequantization(shape, lengths, layer, d)) return reason;
  return first_failing({
      {d.n_pages > 0, "dequantization.n_pages must be at least 1"},
      {fits_head(d.channels, shape.head_dim),
       "dequantization.channels must be a multiple of 16 at heads of 512"},
      {(d.seq_stride | d.token_stride | d.head_stride) % kOctet == 0,
       "dequantization: strides must be multiples of 8"},
      {is_aligned(d.keys, 16) && is_aligned(d.values, 16),
       "dequantization: keys and values must be 16-byte aligned"},
  });
}

Reason read_partial(const kvant_partial* from, PartialRows* rows) {
  kvant_partial partial;
  if (const Reason reason = read_struct(from, &partial)) return reason;
  if (const Reason reason = device::fault_of_partial(partial)) return reason;
  const Reason reason = first_failing({
      {(partial.seq_stride | partial.token_stride | partial.head_stride) % 2 == 0,
       "partial: strides of out must be even"},
      {is_aligned(partial.out, 8), "partial: out must be 8-byte aligned"},
  });
  if (reason != nullptr) return reason;
  *rows = {partial.out,
           number_type(partial.out_type),
           partial.seq_stride,
           partial.token_stride,
           partial.head_stride,
           partial.lse,
           partial.lse_seq_stride,
           partial.lse_token_stride,
           partial.lse_head_stride};
  return nullptr;
}

Reason read_all(const kvant_decode_shape* from_shape, const kvant_decode_lengths* from_lengths,
                const kvant_decode_layer* from_layer, const kvant_dequantization* from_dequantization,
                kvant_decode_shape* shape, kvant_decode_lengths* lengths, kvant_decode_layer* layer,
                kvant_dequantization* dequantization, HeadGroups* groups) {
  Reason reason = read_struct(from_shape, shape);
  if (reason == nullptr) reason = read_struct(from_lengths, lengths);
  if (reason == nullptr) reason = read_struct(from_layer, layer);
  if (reason == nullptr) reason = read_struct(from_dequantization, dequantization);
  if (reason == nullptr) reason = group_heads(*shape, groups);
  return reason == nullptr ? fault_of(*shape, *lengths, *layer, *dequantization) : reason;
}

// Returns why rows of these sizes cannot be processed.
Reason fault_of(const kvant_transformation& t) {
  if (const Reason reason = device::fault_of_transformation(t)) return reason;
  return first_failing({
      {t.source_is_bf16 == 0 || t.source != nullptr, "transformation: source_is_bf16 without a source"},
      {t.source_is_f32 == 0 || t.source != nullptr, "transformation: source_is_f32 without a source"},
      {t.source_is_f16 == 0 || t.source != nullptr, "transformation: source_is_f16 without a source"},
      {(t.source_is_bf16 != 0) + (t.source_is_f32 != 0) + (t.source_is_f16 != 0) <= 1,
       "transformation: more than one of source_is_bf16, source_is_f32 and source_is_f16"},
      {fits_head(t.row_channels, t.head_dim) && fits_head(t.source_channels, t.head_dim),
       "transformation: row_channels and source_channels must be multiples of 16 at heads of 512"},
      {t.source != nullptr || (t.source_channels == 0 && t.row_channels == 0),
       "transformation: row_channels or source_channels without a source"},
      {t.heads_of_factors > 0 || (t.factors == nullptr && t.factors_after == nullptr),
       "transformation: heads_of_factors must be at least 1 where there are factors"},
      {ctas_for(static_cast<std::int64_t>(t.n_rows) * t.n_heads, kTransformThreads) != 0,
       "transformation: too many rows for one launch"},
  });
}

NumberType source_type(const kvant_transformation& t) {
  if (t.source_is_bf16 != 0) return NumberType::bf16;
  if (t.source_is_f32 != 0) return NumberType::f32;
  return t.source_is_f16 != 0 ? NumberType::f16 : number_type(t.type);
}

TransformArgs transform_args(const kvant_transformation& t) {
  TransformArgs args{.n_rows = t.n_rows,
                     .n_heads = t.n_heads,
                     .to = {t.rows,
                            t.row_stride,
                            t.head_stride,
                            channels_or_all(t.row_channels, t.head_dim),
                            {number_type(t.type), 0}},
                     .from = {t.source,
                              t.source_row_stride,
                              t.source_head_stride,
                              channels_or_all(t.source_channels, t.head_dim),
                              {source_type(t), 0}},
                     .factors = t.factors,
                     .factors_after = t.factors_after,
                     .heads_of_factors = std::max(t.heads_of_factors, 1),
                     .hadamard = t.hadamard};
  if (t.source == nullptr)
    args.from = {args.to.rows, args.to.row_stride, args.to.head_stride, args.to.channels, args.to.type};
  args.to.type.is_wide = is_wide(args.to.rows, args.to.row_stride, args.to.head_stride) ? 1 : 0;
  args.from.type.is_wide = is_wide(args.from.rows, args.from.row_stride, args.from.head_stride) ? 1 : 0;
  return args;
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

kvant_status kvant_dequantize(const kvant_decode_shape* caller_shape,
                              const kvant_decode_lengths* caller_lengths,
                              const kvant_decode_layer* caller_layer,
                              const kvant_dequantization* caller_dequantization, kvant_stream stream) {
  kvant_decode_shape shape;
  kvant_decode_lengths lengths;
  kvant_decode_layer layer;
  kvant_dequantization dequantization;
  HeadGroups groups;
  if (const Reason reason = read_all(caller_shape, caller_lengths, caller_layer, caller_dequantization,
                                     &shape, &lengths, &layer, &dequantization, &groups))
    return refuse_argument(reason);
  if (!is_head_dim(shape.head_dim)) return refuse(KVANT_UNSUPPORTED, kNoHeadDim);
  DequantizeArgs args{};
  args.seqs = dequantization.seqs;
  args.first_pages = dequantization.first_pages;
  args.page_counts = dequantization.page_counts;
  args.row_begins = dequantization.row_begins;
  args.first_page = dequantization.first_page;
  args.first_head = dequantization.first_head;
  args.sealed_pages = lengths.sealed_pages;
  args.tail_tokens = lengths.tail_tokens;
  if (const Reason reason = set_sources(layer, shape.n_kv_heads, &args)) return refuse_argument(reason);
  args.rows[KVANT_KEY] = dequantization.keys;
  args.rows[KVANT_VALUE] = dequantization.values;
  args.type = number_type(dequantization.type);
  args.channels = channels_or_all(dequantization.channels, shape.head_dim);
  args.bases[KVANT_KEY] = {dequantization.key_hadamard, dequantization.key_factors};
  args.bases[KVANT_VALUE] = {dequantization.value_hadamard, dequantization.value_factors};
  args.seq_stride = dequantization.seq_stride;
  args.token_stride = dequantization.token_stride;
  args.head_stride = dequantization.head_stride;
  if (lengths.sealed_pages != nullptr) {
    const kvant_status status = set_decodings(shape, groups, layer, &args);
    if (status != KVANT_OK) return status;
  }
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  const dim3 grid(dequantization.n_pages, dequantization.n_heads, 2 * dequantization.n_seqs);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaSuccess;
  with_head_dim(shape.head_dim, [&](auto d) {
    constexpr int kBytes = kDequantizeDynamicBytes<d.value>;
    if constexpr (kBytes > 0)
      error = cudaFuncSetAttribute(dequantize_kernel<d.value>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   kBytes);
    if (error == cudaSuccess)
      dequantize_kernel<d.value><<<grid, kDequantizeThreads, kBytes, cuda_stream>>>(args);
  });
  return error == cudaSuccess ? launch_status() : status_of(error);
}

kvant_status kvant_merge(int32_t n_seqs, int32_t n_tokens, int32_t n_heads, int32_t head_dim,
                         const kvant_partial* into, const kvant_partial* other, kvant_stream stream) {
  if (const Reason reason = kvant::device::fault_of_merge(n_seqs, n_tokens, n_heads))
    return refuse_argument(reason);
  MergeArgs args{n_tokens, n_heads, static_cast<std::int64_t>(n_seqs) * n_tokens * n_heads, {}, {}};
  const unsigned ctas = ctas_for(args.n_rows, kMergeThreads);
  if (const Reason reason = read_partial(into, &args.into)) return refuse_argument(reason);
  if (const Reason reason = read_partial(other, &args.other)) return refuse_argument(reason);
  if (ctas == 0) return refuse_argument("kvant_merge: too many rows for one launch");
  if (!is_head_dim(head_dim)) return refuse(KVANT_UNSUPPORTED, kNoHeadDim);
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  with_head_dim(head_dim,
                [&](auto d) { merge_kernel<d.value><<<ctas, kMergeThreads, 0, cuda_stream>>>(args); });
  return launch_status();
}

kvant_status kvant_transform(const kvant_transformation* from, kvant_stream stream) {
  kvant_transformation t;
  if (const Reason reason = read_struct(from, &t)) return refuse_argument(reason);
  if (const Reason reason = fault_of(t)) return refuse_argument(reason);
  if (!is_head_dim(t.head_dim)) return refuse(KVANT_UNSUPPORTED, kNoHeadDim);
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  const TransformArgs args = transform_args(t);
  const unsigned ctas = ctas_for(static_cast<std::int64_t>(t.n_rows) * t.n_heads, kTransformThreads);
  // The setup overlaps the predecessor's end, because a decode step's rotations take little else.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kTransformThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = gpu.overlap_attributes();
  cudaError_t error = cudaSuccess;
  with_head_dim(t.head_dim,
                [&](auto d) { error = cudaLaunchKernelEx(&config, transform_kernel<d.value>, args); });
  return status_of(error);
}

}  // extern "C"
