// The current device, as far as the library goes by it.
#pragma once

#include <cuda_runtime.h>

#include "kvant/kvant.h"

namespace kvant::cuda {

struct Gpu {
  int multiprocessors;
  int shared_bytes;                 // that a CTA may have
  int multiprocessor_shared_bytes;  // of all its CTAs, each of which takes kReservedBytes more
  bool is_hopper;                   // it runs the code for sm_90a, else that for sm_80 (architecture.cuh)

  static constexpr int kReservedBytes = 1024;
  static constexpr int kLeastSharedBytes = 99 * 1024;  // that any of these GPUs gives a CTA

  // Launch attributes of kernels that may begin while the one before them ends: how many there are.
  unsigned overlap_attributes() const { return is_hopper ? 1 : 0; }
};

// What is taken for the device where there is none: names of kernels are to be had without one.
inline constexpr Gpu kH100{132, 227 * 1024, 228 * 1024, true};

// KVANT_OK, or a refusal where the current device does not run these kernels.
kvant_status find_gpu(Gpu* gpu);

// The current device, or kH100 where there is none that runs these kernels. Refuses nothing.
Gpu gpu_or_h100();

}  // namespace kvant::cuda
