// What a kernel may use on the GPUs for which it is compiled: sm_90a (Hopper), or what all GPUs from sm_80 on
// have in common, which run it from PTX for compute_80. This is for device code only; the host asks which of
// the two the current device runs (gpu.h).
#pragma once

namespace kvant::cuda {

struct Sm80 {
  static constexpr bool kBulkCopies = false;         // cp.async.bulk; else 16 bytes of each lane, cp.async
  static constexpr bool kBarriersSuspend = false;    // mbarrier.try_wait; else a warp polls
  static constexpr bool kOverlapsLaunches = false;   // griddepcontrol; else one kernel after another
  static constexpr bool kWarpgroupProducts = false;  // wgmma; else mma.sync
  static constexpr bool kPackedMaxima = false;       // max.u16x2
  static constexpr bool kConvertsE4m3 = false;       // cvt.f16x2.e4m3x2
  static constexpr bool kLargeSharedMemory = false;  // 227 KB of a CTA; else 99 to 227
  static constexpr bool kPacksBytes = false;  // one instruction rounds two numbers to bytes and packs them
  static constexpr bool kClusters = false;    // of CTAs that read each other's shared memory
};

struct Sm90a {
  static constexpr bool kBulkCopies = true;
  static constexpr bool kBarriersSuspend = true;
  static constexpr bool kOverlapsLaunches = true;
  static constexpr bool kWarpgroupProducts = true;
  static constexpr bool kPackedMaxima = true;
  static constexpr bool kConvertsE4m3 = true;
  static constexpr bool kLargeSharedMemory = true;
  static constexpr bool kPacksBytes = true;
  static constexpr bool kClusters = true;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
using Architecture = Sm90a;
#else
using Architecture = Sm80;
#endif

}  // namespace kvant::cuda
