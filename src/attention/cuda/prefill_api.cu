#include <cuda_runtime.h>

#include <algorithm>

#include "attention/cuda/caller_structs.h"
#include "attention/cuda/dequantize_kernel.cuh"
#include "attention/cuda/head_dim.h"
#include "attention/cuda/head_groups.h"
#include "attention/cuda/merge_kernel.cuh"
#include "attention/cuda/page_format.h"
#include "attention/cuda/page_source.h"
#include "attention/cuda/standard_levels.h"
#include "attention/cuda/transform_kernel.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// False if pages of the format are not known, or have no codes.
bool find_decoding(const char* name, int head_dim, PageDecoding* decoding) {
  *decoding = {};
  PageFormat& stored = decoding->stored;
  if (!find_page_format(name, head_dim, stored) || !find_encoding_of(stored, &decoding->encoding))
    return false;
  decoding->layout = stored.layout;
  decoding->group = stored.group;
  decoding->page_bytes = static_cast<int>(kvant_page_bytes(name, head_dim));
  if (stored.kind == CodeKind::level) set_unit_levels(stored.layout.bits, head_dim, decoding->levels);
  if (stored.kind == CodeKind::state) decoding->trellis = kTrellisCodes[stored.layout.bits - 1];
  return decoding->page_bytes > 0 && decoding->page_bytes <= max_page_bytes(head_dim);
}

// How the pages of every head are decoded.
kvant_status set_decodings(const kvant_decode_shape& shape, const HeadGroups& groups,
                           const kvant_decode_layer& layer, DequantizeArgs* args) {
  for (int i = 0; i < groups.n; ++i) {
    const HeadGroup& group = groups.of[i];
    for (int head = 0; head < group.heads.n; ++head)
      args->decoding_of_head[group.heads.at[head]] = static_cast<std::uint8_t>(i);
    for (int side = 0; side < 2; ++side) {
      PageDecoding& decoding = args->decodings[i][side];
      if (!find_decoding(side == KVANT_KEY ? group.key_format : group.value_format, shape.head_dim,
                         &decoding))
        return KVANT_UNSUPPORTED;
      decoding.codebooks =
          static_cast<const __half*>(side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks);
      decoding.codebook_stride = side == KVANT_KEY ? layer.key_codebook_stride : layer.value_codebook_stride;
      if (decoding.encoding == Encoding::vectors && decoding.codebooks == nullptr)
        return KVANT_INVALID_ARGUMENT;
    }
  }
  return KVANT_OK;
}

bool is_missing(const kvant_pages& pages) {
  return pages.table == nullptr || pages.pool == nullptr;
}

bool valid(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
           const kvant_decode_layer& layer, const kvant_dequantization& dequantization) {
  if (dequantization.n_seqs <= 0 || dequantization.n_seqs > 32767 || dequantization.first_page < 0 ||
      dequantization.n_pages <= 0 || dequantization.first_head < 0 || dequantization.n_heads <= 0 ||
      dequantization.first_head + dequantization.n_heads > shape.n_kv_heads)
    return false;
  if ((lengths.sealed_pages != nullptr && is_missing(layer.sealed)) ||
      (lengths.tail_tokens != nullptr && is_missing(layer.tail)) ||
      ((layer.sink > 0 || layer.masks != nullptr) && is_missing(layer.protected_pages)) || layer.sink < 0 ||
      layer.sink > kPageTokens)
    return false;
  const auto misaligned = [](const void* rows) { return reinterpret_cast<std::uintptr_t>(rows) % 16 != 0; };
  return (dequantization.seq_stride | dequantization.token_stride | dequantization.head_stride) % kOctet ==
             0 &&
         !misaligned(dequantization.keys) && !misaligned(dequantization.values);
}

bool read_partial(const kvant_partial* from, PartialRows* rows) {
  kvant_partial partial;
  if (!read_struct(from, &partial) || partial.out == nullptr || partial.lse == nullptr ||
      (partial.seq_stride | partial.token_stride | partial.head_stride) % 2 != 0 ||
      reinterpret_cast<std::uintptr_t>(partial.out) % 8 != 0)
    return false;
  *rows = {partial.out,
           partial.out_type == KVANT_F32 ? 1 : 0,
           partial.seq_stride,
           partial.token_stride,
           partial.head_stride,
           partial.lse,
           partial.lse_seq_stride,
           partial.lse_token_stride,
           partial.lse_head_stride};
  return true;
}

// CTAs for so many rows, a warp each; 0: too many.
unsigned ctas_for(std::int64_t rows, int threads) {
  const std::int64_t ctas = (rows + threads / kLanes - 1) / (threads / kLanes);
  return ctas <= 0x7fffffff ? static_cast<unsigned>(ctas) : 0;
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
  if (!read_struct(caller_shape, &shape) || !read_struct(caller_lengths, &lengths) ||
      !read_struct(caller_layer, &layer) || !read_struct(caller_dequantization, &dequantization) ||
      !group_heads(shape, &groups) || !valid(shape, lengths, layer, dequantization))
    return KVANT_INVALID_ARGUMENT;
  if (!is_head_dim(shape.head_dim)) return KVANT_UNSUPPORTED;
  DequantizeArgs args{};
  args.seqs = dequantization.seqs;
  args.first_page = dequantization.first_page;
  args.first_head = dequantization.first_head;
  args.sealed_pages = lengths.sealed_pages;
  args.tail_tokens = lengths.tail_tokens;
  args.sealed = source_of(layer.sealed, layer.layer);
  args.tail = source_of(layer.tail, layer.layer);
  args.protected_pages = source_of(layer.protected_pages, layer.layer);
  args.sink = layer.sink;
  args.masks = reinterpret_cast<const uint4*>(layer.masks);
  args.mask_seq_stride = layer.mask_seq_stride;
  args.mask_head_stride = layer.mask_head_stride;
  args.rows[KVANT_KEY] = dequantization.keys;
  args.rows[KVANT_VALUE] = dequantization.values;
  args.seq_stride = dequantization.seq_stride;
  args.token_stride = dequantization.token_stride;
  args.head_stride = dequantization.head_stride;
  if (lengths.sealed_pages != nullptr) {
    const kvant_status status = set_decodings(shape, groups, layer, &args);
    if (status != KVANT_OK) return status;
  }
  const dim3 grid(dequantization.n_pages, dequantization.n_heads, 2 * dequantization.n_seqs);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  with_head_dim(shape.head_dim, [&](auto d) {
    dequantize_kernel<d.value><<<grid, kDequantizeThreads, 0, cuda_stream>>>(args);
  });
  return launch_status();
}

kvant_status kvant_merge(int32_t n_seqs, int32_t n_tokens, int32_t n_heads, int32_t head_dim,
                         const kvant_partial* into, const kvant_partial* other, kvant_stream stream) {
  if (n_seqs <= 0 || n_tokens <= 0 || n_heads <= 0) return KVANT_INVALID_ARGUMENT;
  MergeArgs args{n_tokens, n_heads, static_cast<std::int64_t>(n_seqs) * n_tokens * n_heads, {}, {}};
  const unsigned ctas = ctas_for(args.n_rows, kMergeThreads);
  if (!read_partial(into, &args.into) || !read_partial(other, &args.other) || ctas == 0)
    return KVANT_INVALID_ARGUMENT;
  if (!is_head_dim(head_dim)) return KVANT_UNSUPPORTED;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  with_head_dim(head_dim,
                [&](auto d) { merge_kernel<d.value><<<ctas, kMergeThreads, 0, cuda_stream>>>(args); });
  return launch_status();
}

kvant_status kvant_transform(const kvant_transformation* from, kvant_stream stream) {
  kvant_transformation t;
  if (!read_struct(from, &t) || t.n_rows <= 0 || t.n_heads <= 0 || t.rows == nullptr ||
      t.heads_of_factors < 0 ||
      (t.heads_of_factors == 0 && (t.factors != nullptr || t.factors_after != nullptr)))
    return KVANT_INVALID_ARGUMENT;
  if (!is_head_dim(t.head_dim)) return KVANT_UNSUPPORTED;
  const TransformArgs args{
      t.n_rows,      t.n_heads, t.rows,          t.type == KVANT_F32 ? 1 : 0,     t.row_stride,
      t.head_stride, t.factors, t.factors_after, std::max(t.heads_of_factors, 1), t.hadamard};
  const unsigned ctas = ctas_for(static_cast<std::int64_t>(t.n_rows) * t.n_heads, kTransformThreads);
  if (ctas == 0) return KVANT_INVALID_ARGUMENT;
  // Set up while its predecessor ends: a decode step's rotations take little else.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kTransformThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaError_t error = cudaSuccess;
  with_head_dim(t.head_dim,
                [&](auto d) { error = cudaLaunchKernelEx(&config, transform_kernel<d.value>, args); });
  return error == cudaSuccess ? KVANT_OK : KVANT_CUDA_ERROR;
}

}  // extern "C"
