// The decode kernels that exist: one list for each file of kernels/.
#pragma once

#include <span>

#include "device/cuda/decode/decode_args.h"
#include "device/cuda/device/gpu.h"

namespace kvant::cuda {

// What serves short sequences of which some is sealed.
struct ShortSealedKernel {
  const void* function = nullptr;  // or null: there is none
  int page_warps, table_bytes;     // as of the DecodeKernel's
  int static_bytes;                // of shared memory, beside the tables and rings
};

// What serves launches with few pages for each CTA, as the DecodeKernel in all else.
struct FewPagesKernel {
  const void* function = nullptr;  // or null: there is none
  int page_warps, table_bytes, warp_bytes;
};

// What serves launches with more than 8 columns, as the DecodeKernel in all else: those of up to 16, and of
// up to 32.
struct ManyColumnsKernel {
  const void* function = nullptr;  // or null: there is none
  int max_warps, table_bytes, warp_bytes;
};

struct DecodeKernel {
  const char* name;  // "cuda/sm90/ch4g128+tok4g128"; see name_on
  const char* key_format;
  const char* value_format;
  int head_dim;
  int max_group;   // columns of a warp: query heads of a KV head, and its queries
  int max_warps;   // consumers of a CTA
  int page_warps;  // that share pages, each with some of their tokens or channels
  bool caps_scores;
  SasUse sas;
  const void* function;
  const void* for_several;       // queries of a sequence
  int table_bytes, merge_bytes;  // of max_consumer_warps
  int warp_bytes;                // of each warp at the tables' end
  int key_bytes, value_bytes;    // of sealed pages; 0: there are none
  AnyPage key_page, value_page;  // of the generic kernel
  ShortSealedKernel for_short;
  FewPagesKernel for_few;
  ManyColumnsKernel for_many[2];
  ManyColumnsKernel by_warpgroups;  // for up to 32 columns, on Hopper
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

// The generic kernel for a pair of formats, or null.
const DecodeKernel* find_generic_kernel(const char* key_format, const char* value_format, int head_dim);

// The kernel for a pair of formats, or null: its own where the GPU has the shared memory for it, or else the
// generic one. sas, caps: it must be able to take SAS for the exponential, to cap scores.
const DecodeKernel* find_decode_kernel(const Gpu& gpu, const char* key_format, const char* value_format,
                                       int head_dim, int group, bool sas, bool caps);

// Its name by the code that the GPU runs: "cuda/sm80/ch4g128+tok4g128".
const char* name_on(const Gpu& gpu, const DecodeKernel& kernel);

}  // namespace kvant::cuda
