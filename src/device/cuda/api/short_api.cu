#include <algorithm>

#include "cache/page_counts.h"
#include "device/cuda/common/caller_pages.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/common/refusal.h"
#include "device/cuda/decode/decode_shared.h"
#include "device/cuda/decode/short_args.h"
#include "device/cuda/decode/short_attention.h"
#include "device/cuda/decode/short_kernel.cuh"

namespace kvant::cuda {
namespace {

constexpr float kLog2E = 1.44269504F;

// Sets where rows come from. Queries are transformed on the way or used unchanged.
template <class Args>
void take_rows_of(const kvant_decode_layer& layer, int head_dim, const AppendArgs* new_rows, Args* args) {
  args->queries = {const_cast<void*>(layer.q),
                   layer.q_seq_stride,
                   layer.q_head_stride,
                   channels_or_all(layer.q_channels, head_dim),
                   1,
                   nullptr,
                   0};
  if (new_rows == nullptr) return;
  args->rows_type = new_rows->type;
  if (new_rows->queries.rows != nullptr) args->queries = new_rows->queries;
  for (const int side : {KVANT_KEY, KVANT_VALUE}) args->sides[side] = new_rows->sides[side];
}

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
  take_rows_of(layer, shape.head_dim, new_rows, &args);
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

// Returns the number of clusters of a step with one cluster for each sequence and KV head.
std::int64_t clusters_of(const kvant_decode_shape& shape) {
  return std::int64_t{shape.n_seqs} * shape.n_kv_heads * query_passes(shape.group);
}

// Returns the number of CTAs for each sequence and KV head with `pages` pages. All clusters must run at once,
// because a second wave of clusters would double the time. 0 means that not even clusters of one CTA run at
// once.
int ctas_of(const kvant_decode_shape& shape, int pages, const Gpu& gpu, int clusters_of_head = 1) {
  const std::int64_t n_clusters = clusters_of(shape) * clusters_of_head;
  static_assert(kShortWarps * kTileTokens == kPageTokens);  // There is work for as many CTAs as pages.
  int n_ctas = std::min(pages, kMaxShortCtas);
  while (n_ctas > 0 && gpu.clusters[n_ctas - 1] < n_clusters) --n_ctas;
  return n_ctas;
}

// Returns whether heads have 128 channels, with more than 4 query heads per KV head. The general kernel then
// takes more time for a page.
bool has_many_heads_of_128(const kvant_decode_shape& shape) {
  return shape.head_dim == 128 && shape.group > 4;
}

// Returns whether a CTA of a cluster may have kMaxMoreShortPages, if warps share pages.
bool serves_more_pages(const kvant_decode_shape& shape) {
  return shape.head_dim == 256 || has_many_heads_of_128(shape);
}

// Returns whether clusters of one CTA run in a few waves that leave at most a third of the SMs idle.
bool runs_in_waves(const kvant_decode_shape& shape, const Gpu& gpu) {
  const std::int64_t n_clusters = clusters_of(shape);
  const std::int64_t waves = (n_clusters + gpu.multiprocessors - 1) / gpu.multiprocessors;
  return waves <= kMaxShortWaves && 2 * waves * gpu.multiprocessors <= 3 * n_clusters;
}

int pages_of(const kvant_decode_lengths& lengths) {
  return pages_for(lengths.max_tail_tokens) + lengths.max_sealed_pages;
}

bool has_sealed(const kvant_decode_lengths& lengths) {
  return lengths.sealed_pages != nullptr;
}

// Lays out the shared memory of a launch for sequences with sealed pages, in addition to the static part. The
// memory has tables, barriers, and as many rings of two or four slots as the warps need. Returns the bytes,
// or 0 if no ring fits.
int lay_out_short(const DecodeKernel& kernel, const Gpu& gpu, DecodeArgs* args) {
  constexpr int kAlignment = 1024;  // the alignment of the memory after the static part
  DecodeKernel tables = kernel;
  tables.table_bytes = kernel.for_short.table_bytes;
  tables.merge_bytes = kernel.for_short.static_bytes + kAlignment;
  const int table_bytes = place_codebooks(tables, gpu, &args->key_page, &args->value_page);
  set_page_bytes(kernel, args);
  args->slot_bytes = std::max(kernel.key_bytes, kernel.value_bytes);
  args->barriers_at = round_up_16(table_bytes);
  args->ring_at = (args->barriers_at + Rings::bytes(kShortWarps, kShortStages) + 127) / 128 * 128;
  const int slots = (gpu.shared_bytes - tables.merge_bytes - args->ring_at) / args->slot_bytes;
  const int rings = std::min(kShortWarps / kernel.for_short.page_warps, slots / 2);
  if (rings <= 0) return 0;
  args->consumer_warps = rings * kernel.for_short.page_warps;
  args->stages = slots >= rings * kShortStages ? kShortStages : 2;
  const int bytes =
      args->ring_at + std::max(rings * args->stages * args->slot_bytes, kernel.for_short.output_bytes);
  return bytes <= gpu.shared_bytes - tables.merge_bytes ? bytes : 0;
}

// The CTAs of a cluster lie along x of the grid.
cudaLaunchConfig_t config_of(dim3 grid, int shared_bytes, const Gpu& gpu, cudaStream_t stream,
                             cudaLaunchAttribute (&attributes)[2]) {
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {grid.x, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kShortWarps * kLanes);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = gpu.overlap_attributes() + (grid.x > 1 ? 1 : 0);
  return config;
}

}  // namespace

bool takes_short_kernel(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu,
                        bool share_pages) {
  if (channel_warps(shape.head_dim) > 1 || shape.corrected != 0 || shape.sas != 0 || shape.max_queries > 1 ||
      lengths.query_begins != nullptr)
    return false;
  const int n_ctas = ctas_of(shape, pages_of(lengths), gpu);
  // The limit of tokens follows the SMs and not the clusters. With slightly smaller clusters, the kernel is
  // still faster than the general kernel.
  const auto sms_of_cluster = static_cast<int>(
      gpu.has.clusters ? std::min<std::int64_t>(gpu.multiprocessors / clusters_of(shape), kMaxShortCtas) : 1);
  if (lengths.max_tail_tokens > std::max(kMaxShortTokens, kMaxSharedTokens * sms_of_cluster)) return false;
  // Without sealed pages there are no waves, because the general kernel reads unquantized tokens faster.
  if (!has_sealed(lengths))
    return n_ctas > 0 && lengths.protected_tokens == nullptr && lengths.tail_tokens != nullptr &&
           lengths.max_tail_tokens > 0;
  int max_pages = kMaxShortPages * n_ctas;
  if (share_pages && n_ctas > 0 && serves_more_pages(shape)) max_pages = kMaxMoreShortPages * n_ctas;
  if (share_pages && n_ctas == 0 && has_many_heads_of_128(shape) && runs_in_waves(shape, gpu))
    max_pages = kMaxShortPages;
  // Pages of all formats must fit in the whole shared memory of an SM.
  return gpu.has.bulk_copies && gpu.shared_bytes >= kH100.shared_bytes && shape.skip_threshold == 0 &&
         lengths.max_sealed_pages > 0 && lengths.max_sealed_pages <= max_pages &&
         (lengths.tail_tokens == nullptr || lengths.max_tail_tokens > 0);
}

bool halves_are_faster(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu) {
  const int pages = pages_of(lengths);
  const int n_ctas = ctas_of(shape, pages, gpu);
  const int n_of_half = ctas_of(shape, pages, gpu, 2);
  if (n_of_half == 0) return false;
  // With heads of 128, a kernel for up to 4 query heads takes too much of the time of a kernel for 8.
  if (shape.head_dim != 256) return n_of_half == n_ctas;
  const auto pages_of_cta = [&](int n) { return (lengths.max_sealed_pages + n - 1) / n; };
  // For a page, a kernel for up to 4 query heads needs at most two thirds of the time of a kernel for 8.
  return 2 * pages_of_cta(n_of_half) <= 3 * pages_of_cta(n_ctas);
}

kvant_status attend_short(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                          const kvant_decode_layer& layer, const AppendArgs* new_rows, const Gpu& gpu,
                          cudaStream_t stream) {
  const ShortArgs args = short_args(shape, lengths, layer, new_rows);
  const dim3 grid(static_cast<unsigned>(ctas_of(shape, pages_of(lengths), gpu)), shape.n_kv_heads,
                  shape.n_seqs * query_passes(shape.group));
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = config_of(grid, 0, gpu, stream, attributes);
  cudaError_t error = cudaSuccess;
  with_head_dim_up_to_256(shape.head_dim,
                          [&](auto d) { error = cudaLaunchKernelEx(&config, short_kernel<d.value>, args); });
  return status_of(error);
}

cudaError_t attend_short_sealed(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                                const kvant_decode_layer& layer, const AppendArgs* new_rows,
                                const DecodeKernel& kernel, const Gpu& gpu, ShortSealedArgs& args,
                                cudaStream_t stream) {
  take_rows_of(layer, shape.head_dim, new_rows, &args);
  args.sealed_entries = lengths.max_sealed_pages;
  args.tail_entries = lengths.tail_tokens == nullptr ? 0 : pages_for(lengths.max_tail_tokens);
  const void* function = kernel.for_short.function;
  const int shared_bytes = lay_out_short(kernel, gpu, &args);
  const cudaError_t error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const int clusters_of_head = args.end_query - args.first_query > args.n_queries ? 2 : 1;
  const int n_ctas = std::max(1, ctas_of(shape, pages_of(lengths), gpu, clusters_of_head));
  constexpr int kTwoToThe16th = 1 << 16;
  args.per_cta = (kTwoToThe16th + n_ctas - 1) / n_ctas;
  const dim3 grid(n_ctas, args.heads.n * clusters_of_head, shape.n_seqs);
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = config_of(grid, shared_bytes, gpu, stream, attributes);
  void* arguments[] = {&args};
  return cudaLaunchKernelExC(&config, function, arguments);
}

bool fits_short(const DecodeKernel& kernel, const Gpu& gpu) {
  DecodeArgs args{};
  args.key_page = kernel.key_page;
  args.value_page = kernel.value_page;
  return kernel.for_short.function != nullptr && lay_out_short(kernel, gpu, &args) > 0;
}

}  // namespace kvant::cuda
