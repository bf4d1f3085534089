// Lists the decode kernels that exist, one list for each file of kernels/.
#pragma once

#include <span>

#include "device/cuda/common/gpu.h"
#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

// Describes a kernel for short sequences with sealed pages.
struct ShortSealedKernel {
  const void* function = nullptr;  // null: there is none
  int page_warps, table_bytes;     // like those of the DecodeKernel
  int static_bytes;                // static shared memory, in addition to the tables and rings
};

// Describes a kernel for launches with few pages per CTA; otherwise it is like the DecodeKernel.
struct FewPagesKernel {
  const void* function = nullptr;  // null: there is none
  int page_warps, table_bytes, warp_bytes;
};

// Describes a kernel for launches with more than 8 columns, up to 16 or up to 32; otherwise it is like the
// DecodeKernel.
struct ManyColumnsKernel {
  const void* function = nullptr;  // null: there is none
  int max_warps, table_bytes, warp_bytes;
};

struct DecodeKernel {
  const char* name;  // "cuda/sm90/ch4g128+tok4g128"; see name_on
  const char* key_format;
  const char* value_format;
  int head_dim;
  int max_group;   // columns of a warp: query heads of a KV head times its queries
  int max_warps;   // consumer warps per CTA
  int page_warps;  // warps that share pages by tokens or channels
  bool caps_scores;
  SasUse sas;
  const void* function;
  const void* for_several;       // for several queries per sequence
  int table_bytes, merge_bytes;  // for max_consumer_warps
  int warp_bytes;                // per warp, at the end of the tables
  int key_bytes, value_bytes;    // of quantized pages; 0: there are none
  AnyPage key_page, value_page;  // for the generic kernel
  ShortSealedKernel for_short;
  FewPagesKernel for_few;
  ManyColumnsKernel for_many[2];
  ManyColumnsKernel by_warpgroups;  // up to 32 columns, on Hopper
};

std::span<const DecodeKernel> plain_kernels();
std::span<const DecodeKernel> linear_kernels();
std::span<const DecodeKernel> mixed_linear_kernels();
std::span<const DecodeKernel> progressive_kernels();
std::span<const DecodeKernel> sas_kernels();
std::span<const DecodeKernel> lloyd_max_kernels();
std::span<const DecodeKernel> vector_kernels();
std::span<const DecodeKernel> long_vector_kernels();
std::span<const DecodeKernel> trellis_kernels();
std::span<const DecodeKernel> wide_trellis_kernels();
std::span<const DecodeKernel> wide_head_kernels();
std::span<const DecodeKernel> wide_head_trellis_kernels();
std::span<const DecodeKernel> skipping_kernels();

// Returns the generic kernel for a pair of formats, or null.
const DecodeKernel* find_generic_kernel(const char* key_format, const char* value_format, int head_dim);

// Returns the kernel for a pair of formats, or null. It is the pair's own kernel if the GPU has enough shared
// memory for it, otherwise the generic one. sas and caps require a kernel that can use SAS for the
// exponential, or cap scores.
const DecodeKernel* find_decode_kernel(const Gpu& gpu, const char* key_format, const char* value_format,
                                       int head_dim, int group, bool sas, bool caps);

// Returns its name by the code that the GPU runs: "cuda/sm80/ch4g128+tok4g128".
const char* name_on(const Gpu& gpu, const DecodeKernel& kernel);

}  // namespace kvant::cuda
