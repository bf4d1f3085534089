#include <cuda_runtime.h>

#include <cstdint>

#include "attention/cuda/caller_structs.h"
#include "attention/cuda/prompt/launch.h"
#include "attention/cuda/prompt/tile_layout.cuh"
#include "attention/cuda/workspace_cursor.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// Numbers of work and of CTAs; each CTA counts one past the last.
constexpr std::int64_t kMost = 0x7fff0000;

// Tiles of all sequences; each may leave one of its last slots empty.
std::int64_t tile_slots(const kvant_prompt_shape& shape) {
  return static_cast<std::int64_t>(shape.n_tokens) / kTileTokens + shape.n_seqs;
}

std::int64_t most_items(const kvant_prompt_shape& shape) {
  const int rows = shape.head_dim == 64 ? prompt_block_rows<64>() : prompt_block_rows<128>();
  return static_cast<std::int64_t>(shape.n_queries) / rows + shape.n_seqs;
}

Reason fault_of(const kvant_prompt_shape& shape) {
  return first_failing({
      {shape.n_seqs > 0, "shape.n_seqs must be at least 1"},
      {shape.n_kv_heads > 0 && shape.n_kv_heads <= 65535, "shape.n_kv_heads must be 1 to 65535"},
      {shape.n_kv_heads > 0 && shape.n_heads > 0 && shape.n_heads % shape.n_kv_heads == 0,
       "shape.n_heads must be a multiple of n_kv_heads"},
      {shape.n_queries > 0 && shape.n_tokens > 0, "shape.n_queries and n_tokens must be at least 1"},
      {shape.softmax_scale > 0, "shape.softmax_scale must be greater than 0"},
      {shape.window >= 0, "shape.window is negative"},
      {shape.window == 0 || shape.causal != 0, "shape.window: only causal attention has one"},
      {shape.reserved == 0, "shape.reserved must be 0"},
  });
}

// Why work of this size can't be numbered; the head size is known to be one of ours.
Reason too_large(const kvant_prompt_shape& shape) {
  return first_failing({
      {most_items(shape) * shape.n_heads < kMost, "shape: too many queries and heads for one call"},
      {tile_slots(shape) < kMost, "shape: too many tokens for one call"},
  });
}

Reason fault_of(const kvant_prompt& prompt) {
  const auto is_whole = [](std::int64_t token_stride, std::int64_t head_stride) {
    return (token_stride | head_stride) % 8 == 0;
  };
  return first_failing({
      {prompt.query_begins != nullptr && prompt.token_begins != nullptr,
       "prompt: query_begins or token_begins is null"},
      {prompt.q != nullptr && prompt.k != nullptr && prompt.v != nullptr && prompt.out != nullptr,
       "prompt: q, k, v or out is null"},
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

// Deals out the workspace and says how large it must be.
std::size_t lay_out(const kvant_prompt_shape& shape, void* memory, PromptArgs* args) {
  const std::size_t tile_bytes = shape.head_dim == 64 ? prompt_tile_bytes<64>() : prompt_tile_bytes<128>();
  WorkspaceCursor cursor(memory);
  const std::size_t heads = shape.n_kv_heads;
  args->tiles = cursor.take<unsigned char>(tile_slots(shape) * heads * tile_bytes);
  args->channels = cursor.take<float>(shape.n_seqs * heads * 3 * shape.head_dim);
  args->items = cursor.take<PromptItem>(most_items(shape));
  args->n_items = cursor.take<std::int32_t>(2);
  args->next = args->n_items == nullptr ? nullptr : args->n_items + 1;
  return cursor.used();
}

kvant_status read_shape(const kvant_prompt_shape* from, kvant_prompt_shape* shape) {
  if (const Reason reason = read_struct(from, shape)) return refuse_argument(reason);
  if (const Reason reason = fault_of(*shape)) return refuse_argument(reason);
  if (shape->head_dim != 64 && shape->head_dim != 128)
    return refuse(KVANT_UNSUPPORTED, "shape.head_dim must be 64 or 128 for prompts");
  return refuse_argument(too_large(*shape));
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

kvant_status kvant_prompt_workspace(const kvant_prompt_shape* caller_shape, size_t* bytes) {
  kvant_prompt_shape shape;
  if (bytes == nullptr) return refuse_argument("kvant_prompt_workspace: bytes is null");
  if (const kvant_status status = read_shape(caller_shape, &shape); status != KVANT_OK) return status;
  PromptArgs args{};
  *bytes = lay_out(shape, nullptr, &args);
  return KVANT_OK;
}

kvant_status kvant_prompt_attention(const kvant_prompt_shape* caller_shape, const kvant_prompt* caller_prompt,
                                    void* workspace, size_t workspace_bytes, kvant_stream stream) {
  kvant_prompt_shape shape;
  kvant_prompt prompt;
  if (const kvant_status status = read_shape(caller_shape, &shape); status != KVANT_OK) return status;
  if (const Reason reason = read_struct(caller_prompt, &prompt)) return refuse_argument(reason);
  if (const Reason reason = fault_of(prompt)) return refuse_argument(reason);
  if (workspace == nullptr || !is_aligned(workspace, kWorkspaceAlignment))
    return refuse_argument("workspace is null or not 256-byte aligned");
  PromptLaunch launch{static_cast<int>(tile_slots(shape)), 0, shape.half != 0, shape.sas != 0,
                      static_cast<cudaStream_t>(stream)};
  PromptArgs args{};
  if (lay_out(shape, workspace, &args) > workspace_bytes)
    return refuse(KVANT_WORKSPACE_TOO_SMALL, "workspace_bytes is less than kvant_prompt_workspace says");
  if (const kvant_status status = check_device(&launch.multiprocessors); status != KVANT_OK) return status;
  args.q = {prompt.q, prompt.q_token_stride, prompt.q_head_stride};
  args.k = {prompt.k, prompt.k_token_stride, prompt.k_head_stride};
  args.v = {prompt.v, prompt.v_token_stride, prompt.v_head_stride};
  args.out = prompt.out;
  args.out_token_stride = prompt.out_token_stride;
  args.out_head_stride = prompt.out_head_stride;
  args.lse = prompt.lse;
  args.lse_token_stride = prompt.lse_token_stride;
  args.lse_head_stride = prompt.lse_head_stride;
  args.q_begins = prompt.query_begins;
  args.k_begins = prompt.token_begins;
  args.n_seqs = shape.n_seqs;
  args.n_heads = shape.n_heads;
  args.n_kv_heads = shape.n_kv_heads;
  args.group = shape.n_heads / shape.n_kv_heads;
  args.scale_log2 = shape.softmax_scale * 1.44269504F;
  args.causal = shape.causal;
  // One that no sequence fills is none; numbers of tokens less a window are then in the range of int.
  args.window = shape.window < shape.n_tokens ? shape.window : 0;
  return status_of(shape.head_dim == 64 ? launch_prompt<64>(args, launch) : launch_prompt<128>(args, launch));
}

}  // extern "C"
