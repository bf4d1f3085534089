// Defines which features a kernel may use on the GPUs for which the kernel is compiled. Sm90a is Hopper. Sm80
// has only what all GPUs from sm_80 on have, and every GPU but Hopper runs the code of Sm80, from PTX for
// compute_80. Device code asks Architecture. The host asks the Capabilities of the code that the current
// device runs (gpu.h). To add a generation of GPUs, add a structure and list its name in Architectures.
#pragma once

#include <type_traits>

namespace kvant::cuda {

// Each constant says whether the GPUs have the feature that the constant's comment names. The text after
// "else" is what kernels use without the feature.
struct Sm80 {
  static constexpr const char* kName = "sm80";
  static constexpr int kPtxVersion = 80;
  static constexpr bool kBulkCopies = false;         // cp.async.bulk; else cp.async of 16 bytes by each lane
  static constexpr bool kBarriersSuspend = false;    // mbarrier.try_wait; else a warp polls
  static constexpr bool kOverlapsLaunches = false;   // griddepcontrol; else kernels do not overlap
  static constexpr bool kWarpgroupProducts = false;  // wgmma; else mma.sync
  static constexpr bool kPackedMaxima = false;       // max.u16x2
  static constexpr bool kConvertsE4m3 = false;       // cvt.f16x2.e4m3x2
  static constexpr bool kLargeSharedMemory = false;  // 227 KB for a CTA; else 99 to 227 KB
  static constexpr bool kPacksBytes = false;  // one instruction rounds two numbers to bytes and packs them
  static constexpr bool kClusters = false;    // clusters of CTAs that read each other's shared memory
  // kSharesFewPages says whether kernels are faster if the warps of a CTA with few pages share each page.
  static constexpr bool kSharesFewPages = false;
};

struct Sm90a {
  static constexpr const char* kName = "sm90";
  static constexpr int kPtxVersion = 90;
  static constexpr bool kBulkCopies = true;
  static constexpr bool kBarriersSuspend = true;
  static constexpr bool kOverlapsLaunches = true;
  static constexpr bool kWarpgroupProducts = true;
  static constexpr bool kPackedMaxima = true;
  static constexpr bool kConvertsE4m3 = true;
  static constexpr bool kLargeSharedMemory = true;
  static constexpr bool kPacksBytes = true;
  static constexpr bool kClusters = true;
  static constexpr bool kSharesFewPages = true;
};

// Capabilities holds the features of an architecture for the host. Its members have the names of the
// architecture's constants.
struct Capabilities {
  const char* name;
  int ptx_version;
  bool bulk_copies, overlaps_launches, warpgroup_products, packed_maxima, large_shared_memory, clusters,
      shares_few_pages;
};
template <class A>
inline constexpr Capabilities kCapabilities{
    A::kName,         A::kPtxVersion,        A::kBulkCopies, A::kOverlapsLaunches, A::kWarpgroupProducts,
    A::kPackedMaxima, A::kLargeSharedMemory, A::kClusters,   A::kSharesFewPages};

// The last of the architectures serves all GPUs that have no code of their own.
template <class First, class... Others>
struct ArchitectureList {
  template <int kPtxVersion>
  static constexpr auto find() {
    if constexpr (sizeof...(Others) == 0 || First::kPtxVersion == kPtxVersion)
      return First{};
    else
      return ArchitectureList<Others...>::template find<kPtxVersion>();
  }
  static constexpr const Capabilities& capabilities(int ptx_version) {
    if constexpr (sizeof...(Others) > 0) {
      if (First::kPtxVersion != ptx_version) return ArchitectureList<Others...>::capabilities(ptx_version);
    }
    return kCapabilities<First>;
  }
};
using Architectures = ArchitectureList<Sm90a, Sm80>;

#ifdef __CUDA_ARCH__
using Architecture = decltype(Architectures::find<__CUDA_ARCH__ / 10>());
#else
using Architecture = Sm80;
#endif

}  // namespace kvant::cuda
