// CacheGrid describes, for the web page, how a plan stores each (layer, KV head, side) of the cache.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "recipe/plan.h"

namespace kvant {

// One way to store and read pages.
struct GridFormat {
  std::string format;
  std::string transforms;  // "hadamard", "" for none
  std::string kernel;      // the kernel that reads them
  std::string fallback;    // why no faster kernel reads them; empty: this one is meant for them
  double bits = 0;         // bits per value, parameters included
  std::size_t page_bytes = 0;
  bool operator==(const GridFormat&) const = default;
};

struct CacheGrid {
  Geometry geometry;
  std::string asked;   // label of the recipe that the user asked for
  std::string recipe;  // the recipe that is served, written out
  std::string tail;    // format of unquantized and protected tokens
  double tail_bits = 0;
  int sink = 0, window = 0;  // tokens
  CalibrationState calibration = CalibrationState::not_needed;
  std::vector<GridFormat> formats;  // each format once, most bits first
  std::vector<int> k, v;            // indices of `formats` by KV head, layer by layer (Geometry::head_index)
};

CacheGrid cache_grid(const Plan& plan, const AttentionBackend& backend);

}  // namespace kvant
