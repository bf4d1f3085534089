// The attention benchmark's figures, for people and for programs.
#pragma once

#include <span>
#include <string>

#include "bench/attention_bench.h"

namespace kvant {

// Settings that all rows share.
struct AttentionSettings {
  AttentionHeads shape;
  int n_threads = 1;
  int repeats = 1;
  double read_bandwidth = 0;  // bytes per second
};

// {"schema":"kvant.bench.attention/2", "read_gbps":.., "results":[{"recipe":.., "ctx":.., "us":.., "gbps":..,
// "limit_us":.., "rival":.., "ratio":.., ..}]}. limit_us: the time that reading from memory alone would take.
// ratio: how many times faster the row is than "rival", the fastest one that stores at least as many bits.
// Both are null if there is no such rival.
std::string attention_to_json(std::span<const AttentionRow> rows, const AttentionSettings& settings);
// Returns the figures as a table for a terminal.
std::string attention_table(std::span<const AttentionRow> rows, const AttentionSettings& settings);

}  // namespace kvant
