// The kernels that encode pages: one function for each file of kernels/ that has some.
#pragma once

#include "attention/cuda/encode_args.h"

namespace kvant::cuda {

// What encodes the pages of a side: a kernel of SealArgs and of the first of the grid's sides (its z). Its x
// are the pages that may be due, its y the heads.
struct SealKernel {
  const void* function;
  int threads, shared_bytes;
  bool works_through_pages;  // a CTA takes one page after another, for what it has set up for a head
};

SealKernel scalar_seal_kernel(const PageEncoding& encoding, int head_dim);
SealKernel vector_seal_kernel(const PageEncoding& encoding, int head_dim);
SealKernel trellis_seal_kernel(const PageEncoding& encoding, int head_dim);

}  // namespace kvant::cuda
