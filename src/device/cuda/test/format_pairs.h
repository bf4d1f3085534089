// Lists pairs of formats for tests of the decode kernels that run once for each pair. Common pairs have
// kernels of their own, and the generic kernel serves the other pairs.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/decode_test_cache.h"

namespace kvant::cuda {

inline constexpr FormatPair kPairs[] = {{"bf16", "bf16"},
                                        {"ch4g128", "tok4g128"},
                                        {"ch2g128", "tok2g128"},
                                        {"ch4g128", "tok2g128"},
                                        {"prog4", "prog4"},
                                        {"prog2", "prog2"},
                                        {"lm2", "lm2"},
                                        {"lm3", "lm3"},
                                        {"lm4", "lm4"},
                                        {"vq-d4b8", "vq-d4b8"},
                                        {"vq-d2b8", "vq-d2b8"},
                                        {"vq-d4b10", "vq-d8b12"},
                                        {"vq-d4b12", "vq-d4b12"},
                                        {"vq-d8b12", "vq-d8b12"},
                                        {"vq-d8b12", "vq-d8b8"},
                                        {"tcq1", "tcq1"},
                                        {"tcq2", "tcq2"},
                                        {"tcq3", "tcq3"},
                                        {"tcq4", "tcq4"},
                                        {"tcq5", "tcq5"},
                                        {"tcq6", "tcq6"},
                                        {"tcq3", "tcq2"},
                                        {"tcq4", "tcq5"},
                                        {"prog3", "prog3"},
                                        {"prog5", "prog5"},
                                        {"nvq-d4b8", "nvq-d4b8"},
                                        // The generic kernel serves the pair of fp8 and all pairs after it.
                                        {"fp8", "fp8"},
                                        {"tok8g32s", "lm3"},
                                        {"tcq4", "ch4g64"},
                                        {"tok3g32", "tcq3"},
                                        {"vq-d4b8", "tok2g64"},
                                        {"bf16", "tok1g128s"},
                                        {"prog3", "nvq-d4b10"},
                                        {"ch5g32", "prog5"},
                                        {"nvq-d8b12", "pq-d4b8"},
                                        {"prog2-paper", "f16"}};

// Tests that exclude heads of 512 channels use these head sizes.
inline constexpr int kHeadDimsUpTo256[] = {64, 128, 256};

// Returns whether a sealed page of this format has 16 bits per value. For heads of 512 channels such a page
// has 128 KB, so two pages do not fit in shared memory.
inline bool has_16_bits(const std::string& format) {
  return format == "bf16" || format == "f16";
}

// Returns all combinations of a pair and a head size for which the pair's pages fit in shared memory.
inline std::vector<std::tuple<FormatPair, int>> pairs_by_head_dim() {
  std::vector<std::tuple<FormatPair, int>> cases;
  for (const int d : kHeadDims) {
    for (const FormatPair& pair : kPairs) {
      if (d <= 256 || is_unquantized(pair) || !(has_16_bits(pair.key) || has_16_bits(pair.value)))
        cases.emplace_back(pair, d);
    }
  }
  return cases;
}

// Returns the name of a test for a pair and a head size.
inline std::string name_of(const FormatPair& pair, int d) {
  std::string name = std::string(pair.key) + "_" + pair.value + "_d" + std::to_string(d);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

}  // namespace kvant::cuda
