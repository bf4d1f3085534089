// The kernels that encode pages: one function for each file of kernels/ that has some.
#pragma once

#include "device/cuda/device/gpu.h"
#include "device/cuda/seal/encode_args.h"

namespace kvant::cuda {

// What encodes the pages of a side: a kernel of SealArgs and of the first of the grid's sides (its z). Its x
// are the pages that may be due, its y the heads.
struct SealKernel {
  const void* function;
  int threads, shared_bytes;
  // CTAs that share a multiprocessor and its threads, and take one page after another, for what they have set
  // up for a head; or 0: a CTA for each page, of so many threads.
  int persistent_ctas;
};

SealKernel scalar_seal_kernel(const PageEncoding& encoding, int head_dim);
SealKernel vector_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu);
// fills_gpu: there are pages for all CTAs that may run at once.
SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim, const Gpu& gpu, bool fills_gpu);
// Of keys that have metrics.
SealKernel shaped_seal_kernel(const PageEncoding& encoding, int head_dim);

}  // namespace kvant::cuda
