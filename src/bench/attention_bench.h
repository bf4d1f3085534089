// The attention benchmark: the time that attention of one token takes per layer. Contenders run in turn, so
// that machine noise affects all of them alike.
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
  double bits = 0;     // cache bits per element
  int n_layers = 0;    // layers that a run attends over in turn
  double seconds = 0;  // per layer: the median
  double bytes = 0;    // cache bytes read, per layer
  std::vector<std::string> kernels;
};

// Returns the bytes of cache read per second.
inline double read_speed(const AttentionRow& row) {
  return row.bytes / row.seconds;
}

// At each context all contenders are made, run once without being timed, and then run `repeats` times in
// turn. Rows are ordered by context, then by entry. advance(1) is called after each of attention_bench_units.
Result<std::vector<AttentionRow>> run_attention_bench(std::span<const AttentionEntry> entries,
                                                      std::span<const int> contexts, int repeats,
                                                      const std::function<void(int)>& advance);
int attention_bench_units(std::size_t n_entries, std::size_t n_contexts, int repeats);

// Returns whether a row belongs to a rival.
bool is_rival(const AttentionRow& row);
// Returns the fastest rival at the context of `row` whose cache stores at least as many bits (which may be
// `row` itself), or null.
const AttentionRow* fastest_rival(std::span<const AttentionRow> rows, const AttentionRow& row);

}  // namespace kvant
