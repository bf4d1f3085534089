// Declares the lists of decode kernels, which the files of kernels/ define. The host looks in these lists for
// the kernel of a pair of formats. An entry states which shapes the kernels of a pair serve and how much
// shared memory they need.
#pragma once

#include <span>

#include "device/cuda/common/gpu.h"
#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

// Describes a kernel for short sequences with sealed pages (short_sealed_kernel.cuh).
struct ShortSealedKernel {
  const void* function = nullptr;  // Null means that the pair has no such kernel.
  // DecodeKernel explains page_warps and table_bytes.
  int page_warps, table_bytes;
  int static_bytes;  // bytes of static shared memory, in addition to tables and rings
  int output_bytes;  // bytes of the warps' outputs, which take the place of the rings
};

// Describes a kernel for launches with few pages per CTA. DecodeKernel explains the members.
struct FewPagesKernel {
  const void* function = nullptr;  // Null means that the pair has no such kernel.
  int page_warps, table_bytes, warp_bytes;
};

// Describes a kernel for launches with more than 8 columns. DecodeKernel explains the members.
struct ManyColumnsKernel {
  const void* function = nullptr;  // Null means that the pair has no such kernel.
  int max_warps, table_bytes, warp_bytes;
};

// Holds the functions of a DecodeKernel for launches on heads whose codes have unlike widths.
struct UnlikeHeadsKernel {
  const void* function = nullptr;  // Null means that a launch serves heads of one width.
  const void *for_several, *for_short, *for_few;
  // A page has this many bytes for each bit of a code, and bytes_without_codes more.
  int bytes_of_bit, bytes_without_codes;
};

// Describes the kernels of a pair of formats for one head size.
struct DecodeKernel {
  const char* name;  // An example is "cuda/sm90/ch4g128+tok4g128". name_on() gives the name on other GPUs.
  const char* key_format;
  const char* value_format;
  int head_dim;
  // A warp has at most this many columns. Each query of a sequence has a column for each query head of a KV
  // head.
  int max_group;
  int max_warps;  // consumer warps of a CTA
  // This many warps share pages by tokens or channels.
  int page_warps;
  int copying_warps;  // warps after the consumer warps, of which one copies pages
  bool caps_scores;
  SasUse sas;
  const void* function;
  // This function serves several queries per sequence.
  const void* for_several;
  int table_bytes, merge_bytes;  // bytes with max_consumer_warps() warps
  int warp_bytes;                // bytes of each warp, at the end of the tables
  int key_bytes, value_bytes;    // bytes of a sealed page; 0 if nothing is sealed
  // Only the generic kernel uses these two descriptions of pages.
  AnyPage key_page, value_page;
  ShortSealedKernel for_short;
  FewPagesKernel for_few;
  ManyColumnsKernel for_many[2];
  // On Hopper, warpgroups serve 17 to 32 columns (warpgroup_decoding.cuh).
  ManyColumnsKernel by_warpgroups;
  UnlikeHeadsKernel for_unlike_heads;
};

#define KVANT_PAIR_KERNELS(group) std::span<const DecodeKernel> group##_kernels();
#include "device/cuda/decode/pair_kernels.def"
#undef KVANT_PAIR_KERNELS
// These kernels are used only if a shape may skip values.
std::span<const DecodeKernel> skipping_kernels();

// Returns the generic kernel for a pair of formats, or null.
const DecodeKernel* find_generic_kernel(const char* key_format, const char* value_format, int head_dim);

// Returns the kernel for a pair of formats, or null. The pair's own kernel is preferred if the GPU has enough
// shared memory for it. Otherwise the generic kernel is returned. With `sas` the kernel must be able to use
// SAS for exponentials, and with `caps` to cap scores.
const DecodeKernel* find_decode_kernel(const Gpu& gpu, const char* key_format, const char* value_format,
                                       int head_dim, int group, bool sas, bool caps);

// Returns the kernel's name with the architecture whose code the GPU runs, for example
// "cuda/sm80/ch4g128+tok4g128".
const char* name_on(const Gpu& gpu, const DecodeKernel& kernel);

}  // namespace kvant::cuda
