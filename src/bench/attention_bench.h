// The attention benchmark: what attention of one token costs in each layer, all contenders in turn so that
// machine noise hits all alike.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/attention_contender.h"

namespace kvant {

struct AttentionEntry {
  std::string name;
  // Makes the contender at one of the benchmark's contexts.
  std::function<Result<std::unique_ptr<AttentionContender>>(int context)> make;
};

struct AttentionRow {
  std::string name;
  int context = 0;     // tokens in the cache
  double bits = 0;     // of cache for each element
  int n_layers = 0;    // attended over in turn
  double seconds = 0;  // for each layer: the median
  double bytes = 0;    // of cache read, for each layer
  std::vector<std::string> kernels;
};

// Bytes of cache a second.
inline double read_speed(const AttentionRow& row) {
  return row.bytes / row.seconds;
}

// At each context all contenders are made, run once without being timed, and then `repeats` times in turn.
// Rows by context, then by entry. advance(1) is called after each of attention_bench_units.
Result<std::vector<AttentionRow>> run_attention_bench(std::span<const AttentionEntry> entries,
                                                      std::span<const int> contexts, int repeats,
                                                      const std::function<void(int)>& advance);
int attention_bench_units(std::size_t n_entries, std::size_t n_contexts, int repeats);

// Whether a row is a rival's.
bool is_rival(const AttentionRow& row);
// The fastest rival at the context of `row` whose cache stores at least as many bits (which may be `row`
// itself), or null.
const AttentionRow* fastest_rival(std::span<const AttentionRow> rows, const AttentionRow& row);

}  // namespace kvant
