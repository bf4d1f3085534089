#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/common/workspace_cursor.h"
#include "device/cuda/correction/correction.h"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/prompt/tile_layout.cuh"
#include "device/cuda/rows/page_decodings.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// Numbers of work plus CTAs stay below this limit, because each CTA counts one past the last number.
constexpr std::int64_t kMost = 0x7fff0000;

// Returns the number of slots for the tiles of all sequences. A sequence may leave its last slot empty.
std::int64_t tile_slots(const kvant_prompt_shape& shape) {
  return std::int64_t{shape.n_sealed_pages} + shape.n_tokens / kTileTokens + shape.n_seqs;
}

struct PromptKernel {
  PromptSizes (*sizes)(const Gpu&);
  cudaError_t (*launch)(const PromptArgs&, const PromptLaunch&);
};

// Returns the kernel of a shape that read_shape accepts. Kernels of warpgroups require Hopper, heads of 64 or
// 128, and scores without a cap.
PromptKernel kernel_of(const kvant_prompt_shape& shape, const Gpu& gpu) {
  const bool is_64 = shape.head_dim == 64;
  const bool by_warpgroups = gpu.has.warpgroup_products && shape.head_dim <= 128 && shape.score_softcap == 0;
  if (by_warpgroups && shape.half_products == 0)
    return is_64 ? PromptKernel{prompt_sizes<64>, launch_prompt<64>}
                 : PromptKernel{prompt_sizes<128>, launch_prompt<128>};
  if (by_warpgroups)
    return is_64 ? PromptKernel{half_prompt_sizes<64>, launch_half_prompt<64>}
                 : PromptKernel{half_prompt_sizes<128>, launch_half_prompt<128>};
  if (shape.half_products == 0)
    return with_head_dim_up_to_256(shape.head_dim, [](auto d) {
      return PromptKernel{integer_mma_sizes<d.value>, launch_integer_mma<d.value>};
    });
  return with_head_dim(shape.head_dim, [](auto d) {
    return PromptKernel{mma_prompt_sizes<d.value>, launch_mma_prompt<d.value>};
  });
}

PromptSizes sizes_of(const kvant_prompt_shape& shape, const Gpu& gpu) {
  return kernel_of(shape, gpu).sizes(gpu);
}

// Returns the number of query heads whose rows a block may have.
int mixed_heads(const kvant_prompt_shape& shape, const PromptSizes& sizes) {
  return sizes.units > 1 ? shape.n_heads / shape.n_kv_heads : 1;
}

std::int64_t most_items(const kvant_prompt_shape& shape, const PromptSizes& sizes) {
  const std::int64_t units = std::int64_t{shape.n_queries} / (sizes.block_rows / sizes.units) + shape.n_seqs;
  return units * mixed_heads(shape, sizes) / sizes.units + shape.n_seqs;
}

Reason fault_of(const kvant_prompt_shape& shape) {
  if (const Reason reason = device::fault_of_prompt_shape(shape)) return reason;
  return first_failing({
      {shape.n_kv_heads <= 65535, "shape.n_kv_heads must be 1 to 65535"},
      {shape.n_tokens > 0 || shape.n_sealed_pages > 0,
       "shape.n_tokens must be at least 1 without sealed pages"},
      {shape.kernels == nullptr, "shape.kernels must be null: the kernels that it names are a CPU's"},
      {shape.n_kept_tokens >= 0, "shape.n_kept_tokens is negative"},
      {shape.half_products != 0 || shape.score_softcap == 0, "shape.score_softcap is for half_products"},
      {shape.corrected == 0 || (shape.half_products != 0 && shape.half == 0 && shape.score_softcap == 0),
       "shape.corrected is for half_products of BF16 rows, and scores without a cap"},
      {shape.corrected == 0 ||
           (can_be_corrected(shape.head_dim) && shape.n_heads <= shape.n_kv_heads * kPaddedGroup),
       "shape.corrected: a correction needs heads of 64 or 128 and at most 8 query heads of a KV head"},
  });
}

// Returns why work of this size cannot be numbered. The caller has checked the head size.
Reason too_large(const kvant_prompt_shape& shape, const Gpu& gpu) {
  return first_failing({
      {2 * most_items(shape, sizes_of(shape, gpu)) * shape.n_heads < kMost,
       "shape: too many queries and heads for one call"},
      {tile_slots(shape) < kMost, "shape: too many tokens for one call"},
  });
}

// Returns the type of queries and outputs. KVANT_BF16 stands for the 16-bit type of k and v.
NumberType type_of(kvant_type type, const kvant_prompt_shape& shape) {
  return type == KVANT_BF16 && shape.half != 0 ? NumberType::f16 : number_type(type);
}

Reason fault_of(const kvant_prompt& prompt, const kvant_prompt_shape& shape) {
  const auto is_whole = [](std::int64_t token_stride, std::int64_t head_stride) {
    return (token_stride | head_stride) % 8 == 0;
  };
  if (const Reason reason = device::fault_of_prompt(prompt, shape)) return reason;
  return first_failing({
      {shape.half_products != 0 || (prompt.q_type == KVANT_BF16 && prompt.out_type == KVANT_BF16),
       "prompt: q_type and out_type are for half_products"},
      {shape.half_products != 0 || prompt.sink_logits == nullptr,
       "prompt: sink_logits are for half_products"},
      {shape.half_products != 0 || shape.half == 0 || (prompt.q_hadamard == 0 && prompt.out_hadamard == 0),
       "prompt: q_hadamard and out_hadamard are for half_products or BF16"},
      {shape.head_dim <= 256 || prompt.k == nullptr || (prompt.q_hadamard == 0 && prompt.out_hadamard == 0),
       "prompt: q_hadamard and out_hadamard are for rows in tail pages at heads of 512"},
      {prompt.correction == nullptr || prompt.out_type != KVANT_F16,
       "prompt.out_type must not be KVANT_F16 with a correction"},
      {prompt.correction == nullptr ||
           (prompt.sink_logits == nullptr && prompt.q_hadamard == 0 && prompt.out_hadamard == 0),
       "prompt.correction is not there with sink_logits, q_hadamard or out_hadamard"},
      {is_aligned(prompt.q, 16) && is_aligned(prompt.k, 16) && is_aligned(prompt.v, 16) &&
           is_aligned(prompt.out, 16),
       "prompt: q, k, v and out must be 16-byte aligned"},
      {is_whole(prompt.q_token_stride, prompt.q_head_stride) &&
           is_whole(prompt.k_token_stride, prompt.k_head_stride) &&
           is_whole(prompt.v_token_stride, prompt.v_head_stride) &&
           is_whole(prompt.out_token_stride, prompt.out_head_stride),
       "prompt: strides of q, k, v and out must be multiples of 8"},
  });
}

// Returns why the pages cannot be read. `rows_in_tail` says that k and v are null.
Reason fault_of(const kvant_prompt_pages& pages, const kvant_prompt_shape& shape,
                const kvant_decode_shape& of_pages, const kvant_decode_layer& layer, bool rows_in_tail) {
  if (const Reason reason =
          device::fault_of_prompt_pages(shape, of_pages, layer, pages.sealed_begins != nullptr, rows_in_tail))
    return reason;
  return first_failing({
      {shape.half == 0, "shape.half must be 0 with pages"},
      {pages.sealed_begins != nullptr || pages.query_sealed_pages == nullptr,
       "pages.query_sealed_pages: there are no sealed_begins"},
  });
}

// Fills in the kernels' arguments for a prompt's pages.
kvant_status read_pages(const kvant_prompt_shape& shape, const kvant_prompt& prompt, PromptArgs* args,
                        DequantizeArgs* decoding) {
  kvant_prompt_pages pages;
  kvant_decode_shape of_pages;
  kvant_decode_layer layer;
  HeadGroups groups;
  Reason reason = read_struct(prompt.pages, &pages);
  if (reason == nullptr) reason = read_struct(pages.shape, &of_pages);
  if (reason == nullptr) reason = read_struct(pages.layer, &layer);
  if (reason == nullptr) reason = fault_of(pages, shape, of_pages, layer, prompt.k == nullptr);
  if (reason == nullptr) reason = group_heads(of_pages, &groups);
  if (reason == nullptr) reason = set_sources(layer, of_pages.n_kv_heads, decoding);
  if (reason != nullptr) return refuse_argument(reason);
  decoding->token_stride = dequantized_stride(shape.head_dim);
  decoding->channels = shape.head_dim;
  args->first_row_tokens = pages.first_row_tokens;
  if (pages.sealed_begins == nullptr) return KVANT_OK;
  args->sealed_begins = pages.sealed_begins;
  args->query_sealed = pages.query_sealed_pages;
  args->page_slots = shape.n_sealed_pages;
  return set_decodings(of_pages, groups, layer, decoding);
}

// Returns whether protected tokens are kept rows, in addition to the INT8 tiles of their pages.
bool keeps_rows(const kvant_prompt_shape& shape, const PromptSizes& sizes) {
  return shape.n_kept_tokens > 0 && shape.n_sealed_pages > 0 && sizes.kept_tile_bytes > 0 && shape.sas == 0 &&
         shape.window == 0;
}

// Divides the workspace and returns the size that it needs. `features` receives the place for a correction's
// features.
std::size_t lay_out(const kvant_prompt_shape& shape, const PromptSizes& sizes, void* memory, PromptArgs* args,
                    KeptRows* kept, float** features) {
  WorkspaceCursor cursor(memory);
  const std::size_t heads = shape.n_kv_heads;
  args->tiles = cursor.take<unsigned char>(tile_slots(shape) * heads * sizes.tile_bytes);
  if (shape.half_products == 0)
    args->channels = cursor.take<float>(shape.n_seqs * heads * 3 * shape.head_dim);
  // Sorting needs two of each item, plus one for each piece of items that are cut.
  args->items = cursor.take<PromptItem>(2 * most_items(shape, sizes) + kMostPieces);
  args->halves = cursor.take<float>(sizes.half_numbers);
  args->n_claims = sizes.claims;
  args->claims = cursor.take<std::int32_t>(args->n_claims);
  args->n_items = cursor.take<std::int32_t>(3);
  args->next = args->n_items == nullptr ? nullptr : args->n_items + 1;
  args->sets_together = args->n_items == nullptr ? nullptr : args->n_items + 2;
  if (keeps_rows(shape, sizes)) {
    kept->slots = shape.n_kept_tokens / kTileTokens + shape.n_seqs;
    kept->tiles = cursor.take<unsigned char>(kept->slots * heads * sizes.kept_tile_bytes);
    kept->n_before = shape.n_sealed_pages + shape.n_seqs;
    kept->before = cursor.take<std::int32_t>(kept->n_before * heads);
  }
  if (shape.corrected != 0) {
    const std::size_t at_once = std::min(shape.n_queries, PromptCorrection::rows_at_once(shape.n_heads));
    args->row_sums = cursor.take<PromptRowSums>(std::size_t{1} * shape.n_queries * shape.n_heads);
    *features = cursor.take<float>(at_once * shape.n_heads * kFeatures);
  }
  return cursor.used();
}

// Describes protected tokens as kept rows, and leaves their exact values out of the tiles of their pages. The
// tiles have decoded codes in these places, so the ranges of the tiles stay small. No query sees the places.
void leave_out_protected(DequantizeArgs* pages, KeptRows* kept) {
  kept->masks = pages->masks;
  kept->mask_seq_stride = pages->mask_seq_stride;
  kept->mask_head_stride = pages->mask_head_stride;
  kept->sink = pages->sink;
  kept->protected_pages = pages->protected_pages;
  pages->masks = nullptr;
  pages->sink = 0;
}

// Describes the correction of the rows that the attention kernel has stored.
PromptCorrection correction_of(const PromptArgs& args, int n_queries, const kvant_correction& correction,
                               float* features) {
  PromptCorrection rows{};
  rows.queries.n_seqs = n_queries;
  rows.queries.n_kv_heads = args.n_kv_heads;
  rows.queries.group = args.group;
  rows.queries.query_maps = correction.query_maps;
  rows.queries.states = states_of(correction);
  rows.queries.q = args.q.data;
  rows.queries.q_type = args.q_type;
  rows.queries.q_seq_stride = args.q.token_stride;
  rows.queries.q_head_stride = args.q.head_stride;
  rows.queries.features = features;
  rows.sums = args.row_sums;
  rows.out = args.out;
  rows.out_type = args.out_type;
  rows.out_token_stride = args.out_token_stride;
  rows.out_head_stride = args.out_head_stride;
  rows.lse = args.lse;
  rows.lse_token_stride = args.lse_token_stride;
  rows.lse_head_stride = args.lse_head_stride;
  rows.absolute = correction.absolute;
  return rows;
}

// Chooses which side of a product is rotated: queries or the tiles' keys, and outputs or the tiles' values.
// The side with fewer rows is rotated. With heads of 512, the tiles are always rotated. In integers, tiles
// stay rotated, because their numbers are then more alike and lose less as INT8.
void choose_rotated(const kvant_prompt_shape& shape, const kvant_prompt& prompt, PromptArgs* args) {
  args->q_hadamard = prompt.q_hadamard;
  args->out_hadamard = prompt.out_hadamard;
  const std::int64_t tile_rows = std::int64_t{shape.n_sealed_pages} * kPageTokens + shape.n_tokens;
  const bool are_fewer = tile_rows * shape.n_kv_heads <= std::int64_t{shape.n_queries} * shape.n_heads;
  if (shape.half_products == 0 || prompt.k != nullptr || !(are_fewer || shape.head_dim > 256)) return;
  std::swap(args->q_hadamard, args->key_hadamard);
  std::swap(args->out_hadamard, args->value_hadamard);
}

kvant_status read_shape(const kvant_prompt_shape* from, const Gpu& gpu, kvant_prompt_shape* shape) {
  if (const Reason reason = read_struct(from, shape)) return refuse_argument(reason);
  if (const Reason reason = fault_of(*shape)) return refuse_argument(reason);
  if (!is_head_dim(shape->head_dim)) return refuse(KVANT_UNSUPPORTED, kNoHeadDim);
  if (shape->head_dim > 256 && shape->half_products == 0)
    return refuse(KVANT_UNSUPPORTED, "prompts of heads of 512 are for shape.half_products");
  if (sizes_of(*shape, gpu).block_rows == 0)
    return refuse(KVANT_UNSUPPORTED, "this GPU has too little shared memory for prompts of heads of 512");
  return refuse_argument(too_large(*shape, gpu));
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

kvant_status kvant_prompt_workspace(const kvant_prompt_shape* caller_shape, size_t* bytes) {
  kvant_prompt_shape shape;
  if (bytes == nullptr) return refuse_argument("kvant_prompt_workspace: bytes is null");
  const Gpu gpu = gpu_or_h100();
  if (const kvant_status status = read_shape(caller_shape, gpu, &shape); status != KVANT_OK) return status;
  PromptArgs args{};
  KeptRows kept{};
  float* features = nullptr;
  *bytes = lay_out(shape, sizes_of(shape, gpu), nullptr, &args, &kept, &features);
  return KVANT_OK;
}

kvant_status kvant_prompt_attention(const kvant_prompt_shape* caller_shape, const kvant_prompt* caller_prompt,
                                    void* workspace, size_t workspace_bytes, kvant_stream stream) {
  kvant_prompt_shape shape;
  kvant_prompt prompt;
  Gpu gpu = gpu_or_h100();
  if (const kvant_status status = read_shape(caller_shape, gpu, &shape); status != KVANT_OK) return status;
  if (const Reason reason = read_struct(caller_prompt, &prompt)) return refuse_argument(reason);
  if (const Reason reason = fault_of(prompt, shape)) return refuse_argument(reason);
  kvant_correction correction{};
  if (prompt.correction != nullptr) {
    if (const Reason reason = read_correction(prompt.correction, &correction)) return refuse_argument(reason);
    if (correction.query_maps == nullptr) return refuse_argument("correction: query_maps is null");
  }
  PromptArgs args{};
  DequantizeArgs pages{};
  if (prompt.pages != nullptr) {
    if (const kvant_status status = read_pages(shape, prompt, &args, &pages); status != KVANT_OK)
      return status;
  } else {
    shape.n_sealed_pages = 0;
  }
  if (workspace == nullptr || !is_aligned(workspace, kWorkspaceAlignment))
    return refuse_argument("workspace is null or not 256-byte aligned");
  const PromptKernel kernel = kernel_of(shape, gpu);
  const PromptSizes sizes = kernel.sizes(gpu);
  KeptRows kept{};
  const bool are_kept = keeps_rows(shape, sizes) && args.sealed_begins != nullptr && prompt.q_hadamard == 0 &&
                        prompt.out_hadamard == 0;
  if (are_kept) leave_out_protected(&pages, &kept);
  const PromptLaunch launch{static_cast<int>(tile_slots(shape)),
                            gpu,
                            shape.half != 0,
                            shape.sas != 0,
                            prompt.pages != nullptr ? &pages : nullptr,
                            prompt.k == nullptr,
                            are_kept ? &kept : nullptr,
                            static_cast<cudaStream_t>(stream)};
  float* features = nullptr;
  if (lay_out(shape, sizes, workspace, &args, &kept, &features) > workspace_bytes)
    return refuse(KVANT_WORKSPACE_TOO_SMALL, "workspace_bytes is less than kvant_prompt_workspace says");
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  args.q = {prompt.q, prompt.q_token_stride, prompt.q_head_stride};
  args.k = {prompt.k, prompt.k_token_stride, prompt.k_head_stride};
  args.v = {prompt.v, prompt.v_token_stride, prompt.v_head_stride};
  args.q_type = type_of(prompt.q_type, shape);
  args.out_type = type_of(prompt.out_type, shape);
  choose_rotated(shape, prompt, &args);
  args.sink_logits = prompt.sink_logits;
  args.out = prompt.out;
  args.out_token_stride = prompt.out_token_stride;
  args.out_head_stride = prompt.out_head_stride;
  args.lse = prompt.lse;
  args.lse_token_stride = prompt.lse_token_stride;
  args.lse_head_stride = prompt.lse_head_stride;
  args.slack_log2 = prompt.correction != nullptr ? 0 : kHalfSlack;
  if (prompt.correction == nullptr) args.row_sums = nullptr;
  args.q_begins = prompt.query_begins;
  args.k_begins = prompt.token_begins;
  args.n_ctas = gpu.multiprocessors * sizes.ctas;
  args.n_seqs = shape.n_seqs;
  args.n_heads = shape.n_heads;
  args.n_kv_heads = shape.n_kv_heads;
  args.group = shape.n_heads / shape.n_kv_heads;
  args.mixed = mixed_heads(shape, sizes);
  args.n_sets = shape.n_heads / args.mixed;
  constexpr float kLog2E = 1.44269504F;
  args.scale_log2 = shape.softmax_scale * kLog2E;
  if (shape.score_softcap > 0) {
    args.softcap_log2 = shape.score_softcap * kLog2E;
    args.softcap_slope = 2 * args.scale_log2 / shape.score_softcap;
  }
  args.causal = shape.causal;
  // A window that no sequence fills counts as no window, so token numbers minus a window fit in an int.
  const std::int64_t most_tokens = shape.n_tokens + std::int64_t{shape.n_sealed_pages} * kTileTokens;
  args.window = shape.window < most_tokens ? shape.window : 0;
  const cudaError_t error = kernel.launch(args, launch);
  if (error != cudaSuccess || prompt.correction == nullptr) return status_of(error);
  return status_of(correct_prompt(correction_of(args, shape.n_queries, correction, features), shape.head_dim,
                                  gpu, launch.stream));
}

}  // extern "C"
