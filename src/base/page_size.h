// Sizes that every room shares. Nothing is included here: the per-instruction-set kernels and the CUDA
// sources read it too.
#pragma once

namespace kvant {

// A page holds this many consecutive tokens of one KV head of one layer of one sequence, one side.
inline constexpr int kPageTokens = 128;

// Channels of the widest head that is supported, and so the length of the longest row.
inline constexpr int kMaxHeadDim = 512;

}  // namespace kvant
