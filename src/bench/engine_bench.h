// Runs the engine benchmark, which times prompts and decoding at several depths. Contenders run in turn, so
// machine noise affects all of them alike.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/contender.h"

namespace kvant {

struct BenchOptions {
  std::vector<int> depths = {0};  // tokens in the cache, ascending
  int prompt = 512;               // tokens of the timed prompt, or 0 for none
  int decode = 32;                // tokens of the timed decoding, or 0 for none
  int parallel = 1;               // sequences decoded at a time
  // If true, a text fills the caches. If false, the contents are synthetic.
  bool from_text = false;
  // Figures are medians over this many runs.
  int repeats = 5;
};

struct BenchRow {
  std::string name;
  int depth = 0;
  double bits = 0;        // Contender::bits()
  double prompt_tps = 0;  // tokens per second, or 0 if not timed
  double decode_tps = 0;  // tokens per second of all sequences together
  // Summarizes the seconds of single steps over all runs: median, 99th percentile and maximum. A page is
  // sealed at every 128th token. The percentile therefore excludes such steps, and the maximum includes them.
  double token_p50 = 0, token_p99 = 0, token_max = 0;
  std::string asked;  // Contender::asked()
};

// Selects the rate that is compared: BenchRow::prompt_tps or BenchRow::decode_tps.
using Rate = double BenchRow::*;
// Returns whether a row belongs to llama.cpp, the rival of kvant.
bool is_rival(const BenchRow& row);
// Returns the row with which a row's rate is compared: the fastest rival at the row's depth whose cache
// stores at least as many bits. The rival may be the row itself, and is null if no rival stores enough bits.
// If no rival runs at all, the first row at the depth is returned.
const BenchRow* fastest_rival(std::span<const BenchRow> rows, const BenchRow& row, Rate rate);

// Fills and times all contenders at each depth. Rows are ordered by depth, then by contender. advance(1) is
// called after each of depths * repeats * contenders runs.
Result<std::vector<BenchRow>> run_bench(std::span<const std::unique_ptr<Contender>> contenders,
                                        const BenchOptions& options, const std::function<void(int)>& advance);

// Returns {"schema":"kvant.bench/1", "model":.., "threads":.., "cache_contents":"synthetic",
// "results":[{"recipe":.., "prompt_tps":.., "prompt_rival":.., "prompt_ratio":.., ..}]}. A ratio says how
// many times faster the row is than the rival that fastest_rival() returns.
std::string bench_to_json(std::span<const BenchRow> rows, const BenchOptions& options,
                          const std::string& model, int n_threads);
// Returns the figures as a table for a terminal.
std::string bench_table(std::span<const BenchRow> rows);

}  // namespace kvant
