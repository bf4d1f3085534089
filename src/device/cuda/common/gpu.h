// Gpu holds the properties of the current device that the library uses. Launches choose kernels, numbers of
// CTAs and sizes of shared memory by these properties.
#pragma once

#include <cuda_runtime.h>

#include <array>

#include "device/cuda/common/architecture.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Programs may use clusters of up to this size without a special attribute.
inline constexpr int kMaxClusterCtas = 8;

struct Gpu {
  int multiprocessors;
  int shared_bytes;                 // maximum per CTA
  int multiprocessor_shared_bytes;  // limit for all CTAs of an SM, which each take kReservedBytes more
  Capabilities has;                 // capabilities of the code that the device runs
  // clusters[n - 1] clusters of n CTAs run at once if each CTA takes an SM. Without clusters, only
  // clusters[0] is above 0. The CTAs of a cluster share a GPC, so some SMs are left over.
  std::array<int, kMaxClusterCtas> clusters;

  static constexpr int kReservedBytes = 1024;
  static constexpr int kLeastSharedBytes = 99 * 1024;  // minimum per CTA on all supported GPUs

  // Returns the number of launch attributes of a kernel that may start before the previous kernel ends.
  unsigned overlap_attributes() const { return has.overlaps_launches ? 1 : 0; }
};

// kH100 is the assumed device if no device is present, because the names of kernels must be available without
// a device. The numbers of clusters are upper bounds.
inline constexpr Gpu kH100{
    132, 227 * 1024, 228 * 1024, kCapabilities<Sm90a>, {132, 66, 44, 33, 26, 22, 18, 16}};

// Finds the current device. Returns KVANT_OK, or a refusal if the device does not run these kernels.
kvant_status find_gpu(Gpu* gpu);

// Returns the properties of the current device, or kH100 if no device that runs these kernels is present.
Gpu gpu_or_h100();

}  // namespace kvant::cuda
