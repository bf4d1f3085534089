// Sizes that every module shares. It includes nothing, because kernels for single instruction sets and CUDA
// sources read it too.
#pragma once

namespace kvant {

// A page holds this many consecutive tokens of one KV head of one layer of one sequence, one side.
inline constexpr int kPageTokens = 128;

// The largest supported head size, and therefore the length of the longest row.
inline constexpr int kMaxHeadDim = 512;

}  // namespace kvant
