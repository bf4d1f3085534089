// The kernels that encode pages: one function for each file of kernels/ that has some.
#pragma once

#include "device/cuda/common/gpu.h"
#include "device/cuda/seal/encode_args.h"

namespace kvant::cuda {

// Describes the kernel for the pages of a side. It takes SealArgs and the first of the grid's sides (z). The
// grid's x are the pages that may be due, its y the heads.
struct SealKernel {
  const void* function;
  int threads, shared_bytes;
  // CTAs that share an SM and its threads, and process one page after another to reuse their setup for a
  // head. 0: a CTA per page with this number of threads.
  int persistent_ctas;
};

SealKernel scalar_seal_kernel(const PageEncoding& encoding, int head_dim);
SealKernel vector_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu);
// fills_gpu: there are pages for all CTAs that can run at once.
SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu);
// Returns the kernel for keys that have metrics.
SealKernel shaped_seal_kernel(const PageEncoding& encoding, int head_dim);

}  // namespace kvant::cuda
