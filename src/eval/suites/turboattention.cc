// Lists TurboAttention's ablations (its section 5.6 and appendix C).
//
// The default model has three KV heads and `mix` rounds down, so mix=0.5 selects one head, and mix=0.67
// selects two heads.
#include <fmt/format.h>

#include "eval/suite.h"

namespace kvant {
namespace {

constexpr const char* kIntegers = "softmax=sas,products=integer,tail=int8";

SuiteRow uniform(int bits) {
  return {fmt::format("uniform {} bits", bits), fmt::format("k=prog{0},v=prog{0},{1}", bits, kIntegers)};
}

std::vector<SuiteRow> head_metrics() {
  std::vector<SuiteRow> rows = {uniform(4), uniform(3), uniform(2)};
  for (const char* share : {"0.5", "0.67"}) {
    for (const char* metric : {"gap-std", "entropy", "min-max", "variation"}) {
      rows.push_back({fmt::format("{} {}", metric, share),
                      fmt::format("k=prog4,v=prog4,mix={},mix_k=prog2,mix_v=prog2,mix_metric={},{}", share,
                                  metric, kIntegers)});
    }
  }
  rows.push_back({"KIVI 4 bits", "kivi-4bit"});
  rows.push_back({"KIVI 3 bits", "kivi-3bit"});
  return rows;
}

}  // namespace

std::vector<Suite> turboattention_suites() {
  return {
      {.name = "turboattention-heads",
       .title = "TurboAttention, Figure 7b: choice of the heads with 2 bits instead of 4",
       .rows = head_metrics()},
      {.name = "turboattention-parts",
       .title = "TurboAttention, Table 4: SAS and FlashQ, separately and combined, also as the paper prints "
                "the two",
       .rows = {{"SAS", "k=bf16,v=bf16,softmax=sas"},
                {"SAS as printed", "k=bf16,v=bf16,softmax=sas-paper"},
                {"FlashQ", "k=prog4,v=prog4,products=integer,tail=int8"},
                {"FlashQ as printed", "k=prog4-paper,v=prog4-paper,products=integer,tail=int8"},
                {"FlashQ, real products", "k=prog4,v=prog4"},
                {"FlashQ + SAS", "turboattention-4bit"},
                {"FlashQ + SAS as printed", "turboattention-paper"}}},
  };
}

}  // namespace kvant
