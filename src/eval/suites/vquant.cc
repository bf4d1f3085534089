// Lists VQuant's ablations (its sections 2.1, 6.2.2 and 6.3). The paper's window of 64 tokens is left out,
// because a window of kvant is a multiple of a page.
#include <fmt/format.h>

#include "eval/suite.h"

namespace kvant {
namespace {

std::vector<SuiteRow> protection() {
  std::vector<SuiteRow> rows;
  for (const int window : {128, 256}) {
    for (const int percent : {0, 1, 5, 10}) {
      rows.push_back({fmt::format("{} %, window {}", percent, window),
                      fmt::format("k=ch4g128,v=tok2g128,window={},protect={}", window, percent / 100.0)});
    }
  }
  return rows;
}

// The cache is unquantized, so only the rounding in the prompt's own attention has an effect.
std::vector<SuiteRow> prompts() {
  std::vector<SuiteRow> rows = {{"SageAttention", "sage"}};
  for (const char* kernel : {"int8", "int4"}) {
    for (const int percent : {0, 1, 5, 10}) {
      rows.push_back({fmt::format("{}, {} %", kernel, percent),
                      fmt::format("k=bf16,v=bf16,window=128,prefill=all,prompt={},protect={}", kernel,
                                  percent / 100.0)});
    }
  }
  return rows;
}

}  // namespace

std::vector<Suite> vquant_suites() {
  return {
      {.name = "vquant-protection",
       .title = "VQuant, Tables 5 and 6: protected share and window",
       .rows = protection()},
      {.name = "vquant-coverage",
       .title = "VQuant, Table 1: attention mass on the window and on protected tokens, by context",
       .rows = {{"1 %", "vquant-k4v2-1pct"}, {"5 %", "vquant-k4v2"}, {"10 %", "vquant-k4v2-10pct"}},
       .contexts = {2048, 4096, 8192},
       .layers = true},
      {.name = "vquant-prefill",
       .title = "VQuant, Figure 5: low-bit attention within prompts, compared with SageAttention",
       .rows = prompts(),
       .layers = true,
       .all_prompt = true},
  };
}

}  // namespace kvant
