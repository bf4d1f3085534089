// CacheGrid describes, for the web page, how a plan stores each (layer, KV head, side) of the cache. Places
// that are stored in the same way share an entry, so the description stays small for models with many heads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "recipe/plan.h"

namespace kvant {

// GridFormat describes one way to store and read pages.
struct GridFormat {
  std::string format;
  std::string transforms;  // such as "hadamard"; empty if there are none
  std::string kernel;      // this kernel reads the pages
  std::string fallback;    // the reason why no faster kernel reads the pages; empty if `kernel` is the
                           // format's own
  double bits = 0;         // bits per value, with the format's parameters
  std::size_t page_bytes = 0;
  bool operator==(const GridFormat&) const = default;
};

struct CacheGrid {
  Geometry geometry;
  std::string asked;   // the label of the recipe that the user asked for
  std::string recipe;  // this is the served recipe, written out in full
  std::string tail;    // unquantized and protected tokens have this format
  double tail_bits = 0;
  int sink = 0, window = 0;  // tokens
  CalibrationState calibration = CalibrationState::not_needed;
  std::vector<GridFormat> formats;  // each format occurs once; formats are sorted by falling bits
  std::vector<int> k, v;            // indices into `formats` by KV head, the heads of layer 0 first
                                    // (Geometry::head_index)
};

CacheGrid cache_grid(const Plan& plan, const AttentionBackend& backend);

}  // namespace kvant
