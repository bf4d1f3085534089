// Runs the attention benchmark, which times the attention of one token per layer. Contenders run in turn, so
// machine noise affects all of them alike.
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
  // Makes the contender at `context` tokens, one of the benchmark's contexts.
  std::function<Result<std::unique_ptr<AttentionContender>>(int context)> make;
};

struct AttentionRow {
  std::string name;
  int context = 0;  // tokens in the cache
  double bits = 0;  // cache bits per number
  // A run attends over this many layers in turn.
  int n_layers = 0;
  double seconds = 0;  // median seconds per layer
  double bytes = 0;    // cache bytes read per layer
  std::vector<std::string> kernels;
};

// Returns how many bytes of cache are read per second.
inline double read_speed(const AttentionRow& row) {
  return row.bytes / row.seconds;
}

// Makes all contenders at each context, runs each contender once without timing, and then runs all of them
// `repeats` times in turn. Rows are ordered by context, then by entry. advance(1) is called
// attention_bench_units() times in total.
Result<std::vector<AttentionRow>> run_attention_bench(std::span<const AttentionEntry> entries,
                                                      std::span<const int> contexts, int repeats,
                                                      const std::function<void(int)>& advance);
int attention_bench_units(std::size_t n_entries, std::size_t n_contexts, int repeats);

// Returns whether a row belongs to ggml, the rival of kvant.
bool is_rival(const AttentionRow& row);
// Returns the fastest rival whose cache stores at least as many bits, at the context of `row`. The rival may
// be `row` itself. Returns null if there is none.
const AttentionRow* fastest_rival(std::span<const AttentionRow> rows, const AttentionRow& row);

}  // namespace kvant
