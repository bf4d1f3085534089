// Validates Sparse V. The suites show how much V is skipped, and how skipping changes the results of the same
// cache.
#include <fmt/format.h>

#include "eval/suite.h"

namespace kvant {
namespace {

std::vector<SuiteRow> thresholds(const std::string& recipe) {
  std::vector<SuiteRow> rows;
  for (const char* tau : {"1e-8", "1e-7", "1e-6", "1e-5", "1e-4", "1e-3", "1e-2"})
    rows.push_back({fmt::format("tau {}", tau), fmt::format("{},skip={}", recipe, tau)});
  return rows;
}

}  // namespace

std::vector<Suite> sparse_v_suites() {
  return {
      {.name = "sparse-v-tau",
       .title = "Sparse V: thresholds on turbo3, compared with turbo3 without skipping",
       .rows = thresholds("turbo3"),
       .reference = "turbo3"},
      {.name = "sparse-v-tau-q8",
       .title = "Sparse V: thresholds on q8-turbo3, compared with q8-turbo3 without skipping",
       .rows = thresholds("q8-turbo3"),
       .reference = "q8-turbo3,skip=0"},
      // The paper counts weights of unquantized attention, and each of its heads skips separately. In kvant
      // the heads of a group skip together.
      {.name = "sparse-v-context",
       .title = "Sparse V: skip rate of each layer by context",
       .rows = {{"bf16", "bf16,skip=1e-6"}, {"turbo3", "turbo3-sparse-v"}, {"q8-turbo3", "q8-turbo3"}},
       .contexts = {512, 2048, 4096, 8192},
       .layers = true},
  };
}

}  // namespace kvant
