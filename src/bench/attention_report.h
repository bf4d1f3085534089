// The attention benchmark's figures, for people and for programs.
#pragma once

#include <span>
#include <string>

#include "bench/attention_bench.h"

namespace kvant {

// What holds for all rows.
struct AttentionSettings {
  AttentionShape shape;
  int n_threads = 1;
  int repeats = 1;
  double read_bandwidth = 0;  // bytes a second
};

// {"schema":"kvant.bench.attention/2", "read_gbps":.., "results":[{"recipe":.., "ctx":.., "us":.., "gbps":..,
// "ratio_f16":.., ..}]}. A ratio says how many times faster than ggml's flash attention on f16 or q4_0 the
// row is, and is null where ggml did not run on that.
std::string attention_to_json(std::span<const AttentionRow> rows, const AttentionSettings& settings);
// The same for a terminal.
std::string attention_table(std::span<const AttentionRow> rows, const AttentionSettings& settings);

}  // namespace kvant
