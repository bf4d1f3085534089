// CacheGrid: how each (layer, KV head, side) of the cache is stored: what a plan says, for the page.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "recipe/plan.h"

namespace kvant {

// One way in which pages are stored and read.
struct GridFormat {
  std::string format;
  std::string transforms;  // "hadamard", "" for none
  std::string kernel;      // that reads them
  std::string fallback;    // why no faster one does; empty: it is meant for them
  double bits = 0;         // of an element, all parameters included
  std::size_t page_bytes = 0;
  bool operator==(const GridFormat&) const = default;
};

struct CacheGrid {
  Geometry geometry;
  std::string asked;   // the label of the recipe that was asked for
  std::string recipe;  // that is served, written out
  std::string tail;    // the format of unsealed and protected tokens
  double tail_bits = 0;
  int sink = 0, window = 0;  // tokens
  CalibrationState calibration = CalibrationState::not_needed;
  std::vector<GridFormat> formats;  // each once, of most bits first
  std::vector<int> k, v;            // by KV head, layer by layer (Geometry::head_index): indices of `formats`
};

CacheGrid cache_grid(const Plan& plan, const AttentionBackend& backend);

}  // namespace kvant
