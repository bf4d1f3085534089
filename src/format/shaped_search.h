// The search for a trellis path (trellis.h) whose errors cost least under an ErrorMetric. Float operations in
// a fixed order, with fused multiply-adds only where the code says so: the same path on every processor.
//
// Nodes and parents: trellis_viterbi.h. Of the paths to a node one survives, with what its errors add up to.
//
// Included where code is compiled for newer processors: declares only.
#pragma once

#include <cstdint>

#include "format/error_metric.h"

namespace kvant {

inline constexpr int kShapedTrace = 256;  // bytes for each value

struct ShapedRow {
  const float* values;   // [n]
  std::uint8_t seam;     // the node in which the path begins, and ends
  std::uint8_t* states;  // [n]: written
};

// One instruction set.
struct ShapedKernel {
  const char* name;  // "avx512"
  // levels: of all 256 states. trace: room for kShapedTrace * n bytes.
  void (*search)(int bits, const float* levels, const FeedbackStep* steps, int n, const ShapedRow* rows,
                 int n_rows, std::uint8_t* trace);
};

const ShapedKernel& portable_shaped_search();
const ShapedKernel* avx512_shaped_search();  // null where the build has none
// The best one that this machine can run.
const ShapedKernel& best_shaped_search();

}  // namespace kvant
