// Copies rows of the tail into protected pages, which keep them unquantized. A CTA copies one token of one KV
// head and side, and each thread copies one channel.
#pragma once

#include "device/cuda/common/arguments.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

struct ProtectArgs {
  PageSource tail, protected_pages;
  const std::int32_t *seq, *head, *tail_token, *protected_token;
};

// Copies one row in each CTA. The grid is [sides][rows].
template <int D>
__global__ void __launch_bounds__(D) protect_kernel(const __grid_constant__ ProtectArgs args) {
  const int i = static_cast<int>(blockIdx.x);
  const int side = static_cast<int>(blockIdx.y);
  const int channel = static_cast<int>(threadIdx.x);
  const auto number_at = [&](const PageSource& source, int token) {
    auto* page = reinterpret_cast<std::uint16_t*>(
        const_cast<unsigned char*>(source.find(args.seq[i], args.head[i], side, token / kPageTokens)));
    return page + plain_index(static_cast<PageSide>(side), D, token % kPageTokens, channel);
  };
  *number_at(args.protected_pages, args.protected_token[i]) = *number_at(args.tail, args.tail_token[i]);
}

}  // namespace kvant::cuda
