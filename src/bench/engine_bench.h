// Prompt and decode speed at several depths, all contenders in turn so that machine noise hits all alike.
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
  int decode = 32;                // tokens of the timed answer; 0: don't time answers
  int repeats = 5;                // the figures are medians of this many runs
};

struct BenchRow {
  std::string name;
  int depth = 0;
  double prompt_tps = 0;  // tokens a second; 0: not timed
  double decode_tps = 0;
  // Of the seconds of single tokens, all runs together: the median, the 99th percentile, the largest. A page
  // is sealed at every 128th token, so that the percentile leaves that out and the largest has it.
  double token_p50 = 0, token_p99 = 0, token_max = 0;
};

// Rows by depth, then by contender. advance(1) is called after each of depths * repeats * contenders runs.
Result<std::vector<BenchRow>> run_bench(std::span<const std::unique_ptr<Contender>> contenders,
                                        const BenchOptions& options, const std::function<void(int)>& advance);

// {"schema":"kvant.bench/1","model":..,"threads":..,"filled":"synthetic","results":[..]}
std::string bench_to_json(std::span<const BenchRow> rows, const BenchOptions& options,
                          const std::string& model, int n_threads);
// The same for a terminal; each figure also as a multiple of the first contender's at the same depth.
std::string bench_table(std::span<const BenchRow> rows);

}  // namespace kvant
