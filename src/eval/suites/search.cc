// Holds the experiments that led to kvant's own recipes. Each suite varies one choice. Most suites vary K or
// V alone, while the other side stays unquantized.
#include <fmt/format.h>

#include "eval/suite.h"

namespace kvant {
namespace {

using Names = std::vector<std::string>;

// Applies each description of one side to K alone or to V alone.
std::vector<SuiteRow> one_side(char side, const Names& stored) {
  std::vector<SuiteRow> rows;
  for (const std::string& name : stored)
    rows.push_back({name, fmt::format("{}={},sink=4", side == 'k' ? "v=bf16,k" : "k=bf16,v", name)});
  return rows;
}

Names with_transforms(const Names& transforms, const std::string& format) {
  Names stored = {format};
  for (const std::string& transform : transforms) stored.push_back(transform + ":" + format);
  return stored;
}

// Lists formats for either side, each with the transform that suits the format.
const Names kFormats = {"fp8",
                        "tok8g32s",
                        "ch4g128",
                        "hadamard:ch4g128",
                        "hadamard:tok4g32",
                        "hadamard:tok4g128",
                        "hadamard:prog4",
                        "hadamard:tcq4",
                        "rhadamard:lm4",
                        "ch3g128",
                        "hadamard:tok3g128",
                        "hadamard:prog3",
                        "hadamard:tcq3",
                        "rhadamard:lm3",
                        "ch2g128",
                        "hadamard:tok2g128",
                        "hadamard:prog2",
                        "hadamard:tcq2",
                        "rhadamard:tcq2",
                        "tcq2",
                        "hadamard:tcq1",
                        "rhadamard:lm2",
                        "smooth+hadamard:vq-d2b8",
                        "smooth+hadamard:vq-d4b8",
                        "hadamard:nvq-d4b8",
                        "mean+hadamard:nvq-d4b8"};
const Names kTransforms = {"hadamard",
                           "rhadamard",
                           "smooth",
                           "scale",
                           "mean",
                           "pca",
                           "mean+hadamard",
                           "smooth+hadamard",
                           "hadamard+smooth",
                           "scale+hadamard",
                           "hadamard+scale",
                           "mean+smooth+hadamard"};

std::vector<SuiteRow> group_sizes() {
  std::vector<SuiteRow> rows;
  for (const int bits : {4, 3, 2}) {
    for (const int group : {32, 64, 128}) {
      rows.push_back({fmt::format("{} bits, groups of {}", bits, group),
                      fmt::format("k=ch{0}g{1},v=hadamard:tok{0}g{1},sink=4", bits, group)});
    }
  }
  return rows;
}

// Compares equal bits for all heads, one or two more bits for K than for V, and bits that are allocated by
// sensitivity.
std::vector<SuiteRow> allocations() {
  return {
      {"2 bits", "k=hadamard:tcq2,v=hadamard:tcq2,sink=4"},
      {"K 3, V 2 bits", "k=hadamard:tcq3,v=hadamard:tcq2,sink=4"},
      {"spread, 2.5 bits", "kvant-2bit"},
      {"3 bits", "k=hadamard:tcq3,v=hadamard:tcq3,sink=4"},
      {"K 4, V 2 bits", "k=hadamard:tcq4,v=hadamard:tcq2,sink=4"},
      {"K 4, V 3 bits", "k=hadamard:tcq4,v=hadamard:tcq3,sink=4"},
      {"spread, 3.5 bits", "kvant-3bit"},
      {"4 bits", "k=hadamard:tcq4,v=hadamard:tcq4,sink=4"},
      {"K 5, V 4 bits", "k=hadamard:tcq5,v=hadamard:tcq4,sink=4"},
      {"spread, 4.5 bits", "kvant-4bit"},
  };
}

// Varies which tokens stay unquantized.
std::vector<SuiteRow> unquantized_tokens() {
  const std::string base = "k=ch3g128,v=hadamard:tok2g128";
  std::vector<SuiteRow> rows;
  for (const char* what :
       {"sink=0", "sink=1", "sink=4", "sink=16", "sink=64", "sink=4,window=128", "sink=4,window=256",
        "sink=4,window=512", "sink=4,protect=0.01", "sink=4,protect=0.02", "sink=4,protect=0.05"})
    rows.push_back({what, fmt::format("{},{}", base, what)});
  return rows;
}

}  // namespace

std::vector<Suite> search_suites() {
  return {
      {.name = "search-k",
       .title = "kvant's search: formats of K, V unquantized",
       .rows = one_side('k', kFormats)},
      {.name = "search-v",
       .title = "kvant's search: formats of V, K unquantized",
       .rows = one_side('v', kFormats)},
      {.name = "search-k-axis",
       .title = "kvant's search: transforms of K, channel-wise, 3 bits",
       .rows = one_side('k', with_transforms(kTransforms, "ch3g128"))},
      {.name = "search-k-transforms",
       .title = "kvant's search: transforms of K, token-wise, 3 bits",
       .rows = one_side('k', with_transforms(kTransforms, "tok3g128"))},
      {.name = "search-v-transforms",
       .title = "kvant's search: transforms of V, token-wise, 2 bits",
       .rows = one_side('v', with_transforms(kTransforms, "tok2g128"))},
      {.name = "search-groups", .title = "kvant's search: group sizes", .rows = group_sizes()},
      {.name = "search-allocation",
       .title = "kvant's search: bits by side, and by layer, head and side",
       .rows = allocations()},
      {.name = "search-unquantized",
       .title = "kvant's search: sink, window and protection",
       .rows = unquantized_tokens()},
  };
}

}  // namespace kvant
