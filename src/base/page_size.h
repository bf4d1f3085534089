// Defines sizes that every module shares. This header includes nothing, because sources that are compiled for
// one instruction set and CUDA sources include it too.
#pragma once

namespace kvant {

// kPageTokens is the number of tokens in a page. A page holds consecutive tokens of one KV head of one layer
// of one sequence, one side.
inline constexpr int kPageTokens = 128;

// kMaxHeadDim is the largest supported head size in channels, and therefore the length of the longest row.
inline constexpr int kMaxHeadDim = 512;

}  // namespace kvant
