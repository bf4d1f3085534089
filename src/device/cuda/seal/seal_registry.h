// Finds the kernel that encodes a side's pages. The functions are defined in the files of kernels/.
#pragma once

#include "device/cuda/common/gpu.h"
#include "device/cuda/seal/encode_args.h"

namespace kvant::cuda {

// Describes the kernel for the pages of a format. The kernel's argument is SealArgs. The dimensions of the
// grid are the pages of a unit that may be due (x), and the units (y).
struct SealKernel {
  const void* function;
  int threads, shared_bytes;
  // persistent_ctas is the number of CTAs that run on an SM at once and share `threads` threads. Each CTA
  // processes several pages and reuses the setup for a head. 0 means one CTA of `threads` threads for each
  // page.
  int persistent_ctas;
  // The largest number of CTAs of a cluster that share a page.
  int most_sharing_ctas = 1;
};

// With keys of fewer bits, CTAs of shaped_seal_kernel() leave no registers for other CTAs.
inline constexpr int kLeastJoinedBits = 2;
// With at least kLeastJoinedBits, CTAs of shaped_seal_kernel() leave registers on an SM for one CTA of a
// kernel that is compiled for this many CTAs per SM.
inline constexpr int kJoiningCtas = 4;

SealKernel scalar_seal_kernel(const PageEncoding& encoding, int head_dim);
SealKernel vector_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu);
// Returns the kernel for trellis codes. fills_gpu says whether a sequence may have several due pages, and all
// sequences together may have more than three for each SM. If `joins` is true and pages have a kernel whose
// CTAs fit on an SM together with CTAs of shaped_seal_kernel(), the function returns that kernel.
SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu,
                               bool joins);
// Returns the kernel for keys whose errors are shaped by metrics of their queries. fills_gpu is that of
// trellis_seal_kernel().
SealKernel shaped_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu);

}  // namespace kvant::cuda
