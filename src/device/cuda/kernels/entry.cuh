// Makes the entries of the registry of decode kernels. An entry describes a kernel's formats, limits and
// variants. Launches choose kernels by the entries alone.
#pragma once

#include <algorithm>

#include "device/cuda/decode/decode_kernel.cuh"
#include "device/cuda/decode/decode_registry.h"
#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/decode/short_sealed_kernel.cuh"
#include "device/cuda/decode/warpgroup_decoding.cuh"

#define KVANT_KERNEL_NAME(key, value) "cuda/sm90/" key "+" value

namespace kvant::cuda {

// kHasShortKernel says whether the pair has a kernel for short sequences. Calls that request SAS or skipping
// of values never use that kernel.
template <class Pair>
inline constexpr bool kHasShortKernel = Pair::kSealed&& kSasUse<Pair> != SasUse::always && !requires {
  Pair::kValueIdsAt;
};

template <class Pair, int D>
ShortSealedKernel short_sealed_entry() {
  if constexpr (!kHasShortKernel<Pair> || channel_warps(D) > 1) {
    return {};
  } else {
    using Short = typename ShortPairOf<Pair>::type;
    // Each warp of the kernel needs its own memory in the tables.
    static_assert(!requires { Short::kWarpBytes; } || max_warps<Short>() >= kShortWarps);
    return {reinterpret_cast<const void*>(&short_sealed_kernel<Short, D>), kPageWarps<Short>,
            Short::kTableBytes, static_cast<int>(sizeof(SharedOfPair<Short, D>)),
            static_cast<int>(sizeof(WarpOutputs<D>))};
  }
}

// Makes the entry for launches with few pages, in which warps share pages as for short sequences. The entry
// exists only for heads of 128 channels, for which it was timed.
template <class Pair, int D>
FewPagesKernel few_pages_entry() {
  if constexpr (D == 128 && kPageWarps<Pair> == 1 && requires { typename Pair::OfShort; }) {
    using Few = typename Pair::OfShort;
    int warp_bytes = 0;
    if constexpr (requires { Few::kWarpBytes; }) warp_bytes = Few::kWarpBytes;
    return {reinterpret_cast<const void*>(&decode_kernel<Few, D, DecodeArgs>), kPageWarps<Few>,
            Few::kTableBytes, warp_bytes};
  }
  return {};
}

// Returns the size of the merge buffer. Warps that share a page by channels add scores in the same buffer.
template <int D>
constexpr int merge_bytes() {
  constexpr int kMerged = static_cast<int>(sizeof(MergeBuffer<D>));
  if constexpr (channel_warps(D) == 1) return kMerged;
  constexpr int kRings = max_consumer_warps(D) / channel_warps(D);
  return std::max(kMerged, kRings * static_cast<int>(sizeof(ScoreSums<D>)));
}

template <class Shared, int D>
ManyColumnsKernel shared_entry() {
  return {reinterpret_cast<const void*>(&decode_kernel<Shared, D, SeveralArgs>), Shared::kMaxWarps,
          Shared::kTableBytes, Shared::kWarpBytes};
}
// Marks kernels that Hopper replaces by kernels of its own.
template <class Shared>
struct NotForHopper : Shared {
  static constexpr bool kForHopper = false;
};

// Makes the entry for warps that share the decoding of pages, if the pair supports sharing. The entry
// requires heads of 128 channels, with which each of four warps has as many tiles of channels as of tokens.
// The entry excludes SAS, which is relative to the largest score.
template <class Pair, int D, int Sets>
ManyColumnsKernel many_columns_entry() {
  constexpr bool kHasFewerColumns = requires {
    requires(Pair::kMaxGroup < kPaddedGroup);
  };
  if constexpr (D == 128 && kPageWarps<Pair> == 1 && kSasUse<Pair> == SasUse::never && !kHasFewerColumns &&
                requires { typename Pair::Strips; }) {
    using Shared = SharedDecoding<typename Pair::Strips, D, Sets>;
    if constexpr (Sets == kColumnSets && requires { typename Pair::Groups; })
      return shared_entry<NotForHopper<Shared>, D>();
    else
      return shared_entry<Shared, D>();
  }
  return {};
}
// Makes the entry for warpgroups on Hopper, if the pair supports warpgroups.
template <class Pair, int D>
ManyColumnsKernel warpgroup_entry() {
  if constexpr (D == 128 && kPageWarps<Pair> == 1 && requires { typename Pair::Groups; })
    return shared_entry<WarpgroupDecoding<typename Pair::Groups, D>, D>();
  else
    return {};
}

// Makes the entry for heads of unlike code widths, if the pair supports them.
template <class Pair, int D>
UnlikeHeadsKernel unlike_heads_entry() {
  if constexpr (requires { typename Pair::OfUnlikeHeads; }) {
    using Unlike = typename Pair::OfUnlikeHeads;
    return {reinterpret_cast<const void*>(&decode_kernel<Unlike, D, DecodeArgs>),
            reinterpret_cast<const void*>(&decode_kernel<Unlike, D, SeveralArgs>),
            short_sealed_entry<Unlike, D>().function,
            few_pages_entry<Unlike, D>().function,
            0,
            0};
  }
  return {};
}

template <class Pair, int D>
DecodeKernel decode_entry(const char* name, const char* key, const char* value) {
  DecodeKernel entry{name,
                     key,
                     value,
                     D,
                     kPaddedGroup,
                     max_warps<Pair>(),
                     kRingWarps<Pair, D>,
                     kCopyingWarps<Pair>,
                     kCapsScores<Pair>,
                     kSasUse<Pair>,
                     reinterpret_cast<const void*>(&decode_kernel<Pair, D, DecodeArgs>),
                     reinterpret_cast<const void*>(&decode_kernel<Pair, D, SeveralArgs>),
                     Pair::kTableBytes,
                     merge_bytes<D>(),
                     0,
                     0,
                     0,
                     {},
                     {},
                     short_sealed_entry<Pair, D>(),
                     few_pages_entry<Pair, D>(),
                     {many_columns_entry<Pair, D, 2>(), many_columns_entry<Pair, D, 4>()},
                     warpgroup_entry<Pair, D>(),
                     unlike_heads_entry<Pair, D>()};
  if constexpr (Pair::kSealed && requires { Pair::Key::kPageBytes; }) {
    entry.key_bytes = Pair::Key::kPageBytes;
    entry.value_bytes = Pair::Value::kPageBytes;
  }
  if constexpr (requires { Pair::kMaxGroup; }) entry.max_group = Pair::kMaxGroup;
  if constexpr (requires { Pair::kWarpBytes; }) entry.warp_bytes = Pair::kWarpBytes;
  return entry;
}

}  // namespace kvant::cuda

// The macros from KVANT_PAIR_64 to KVANT_PAIR_512 make the entry of a pair of formats for one head size.
#define KVANT_PAIR_64(key, value, ...) \
  decode_entry<__VA_ARGS__, 64>(KVANT_KERNEL_NAME(key, value), key, value)
#define KVANT_PAIR_128(key, value, ...) \
  decode_entry<__VA_ARGS__, 128>(KVANT_KERNEL_NAME(key, value), key, value)
#define KVANT_PAIR_256(key, value, ...) \
  decode_entry<__VA_ARGS__, 256>(KVANT_KERNEL_NAME(key, value), key, value)
#define KVANT_PAIR_512(key, value, ...) \
  decode_entry<__VA_ARGS__, 512>(KVANT_KERNEL_NAME(key, value), key, value)
