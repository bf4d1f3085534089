// Reports the attention benchmark's figures, as JSON for programs and as a table for people. Each row is
// compared with a rival and with the time that memory bandwidth allows.
#pragma once

#include <span>
#include <string>

#include "bench/attention_bench.h"

namespace kvant {

// Holds the settings that all rows share.
struct AttentionSettings {
  AttentionHeads shape;
  int n_threads = 1;
  int repeats = 1;
  double read_bandwidth = 0;  // bytes per second
};

// Returns {"schema":"kvant.bench.attention/2", "read_gbps":.., "results":[{"recipe":.., "ctx":.., "us":..,
// "gbps":.., "limit_us":.., "rival":.., "ratio":.., ..}]}. limit_us is the time that reading from memory
// alone would take. "rival" is the fastest rival that stores at least as many bits, and ratio says how many
// times faster the row is. Both values are null if there is no rival.
std::string attention_to_json(std::span<const AttentionRow> rows, const AttentionSettings& settings);
// Returns the figures as a table for a terminal.
std::string attention_table(std::span<const AttentionRow> rows, const AttentionSettings& settings);

}  // namespace kvant
