// Prompt and decode speed at several depths. Contenders run in turn, so machine noise affects all of
// them alike.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/contender.h"

namespace kvant {

struct BenchOptions {
  std::vector<int> depths = {0};  // tokens in the cache; ascending
  int prompt = 512;               // tokens of the timed prompt; 0: don't time prompts
  int decode = 32;                // tokens of the timed decoding; 0: don't time it
  int parallel = 1;               // sequences that are decoded at a time
  bool from_text = false;         // caches are filled with a text, not synthetically
  int repeats = 5;                // the figures are medians of this many runs
};

struct BenchRow {
  std::string name;
  int depth = 0;
  double bits = 0;        // see Contender
  double prompt_tps = 0;  // tokens per second; 0: not timed
  double decode_tps = 0;  // all sequences together
  // Statistics over the seconds of single steps of all runs: median, 99th percentile, maximum. A page is
  // sealed at every 128th token, which the percentile therefore excludes and the maximum includes.
  double token_p50 = 0, token_p99 = 0, token_max = 0;
  std::string asked;  // see Contender
};

// The rate that is compared: BenchRow::prompt_tps or BenchRow::decode_tps.
using Rate = double BenchRow::*;
// Returns whether a row belongs to a rival.
bool is_rival(const BenchRow& row);
// Returns the row that a row's rate is compared with. This is the fastest rival at its depth whose cache
// stores at least as many bits (which may be the row itself), or null if none does. If no rival runs, it is
// the first row at that depth.
const BenchRow* fastest_rival(std::span<const BenchRow> rows, const BenchRow& row, Rate rate);

// Rows are ordered by depth, then by contender. advance(1) is called after each of depths * repeats *
// contenders runs.
Result<std::vector<BenchRow>> run_bench(std::span<const std::unique_ptr<Contender>> contenders,
                                        const BenchOptions& options, const std::function<void(int)>& advance);

// {"schema":"kvant.bench/1","model":..,"threads":..,"cache_contents":"synthetic","results":[{"recipe":..,
// "prompt_tps":.., "prompt_rival":.., "prompt_ratio":.., ..}]}. A ratio says how many times faster than the
// rival (see fastest_rival) the row is.
std::string bench_to_json(std::span<const BenchRow> rows, const BenchOptions& options,
                          const std::string& model, int n_threads);
// Returns the figures as a table for a terminal.
std::string bench_table(std::span<const BenchRow> rows);

}  // namespace kvant
