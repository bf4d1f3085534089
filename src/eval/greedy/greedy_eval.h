// GreedyEval: for how many tokens a cache's greedy generations agree with the reference's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/logit_metrics.h"
#include "eval/logit_source.h"

namespace kvant {

// Continues after what the source has read: calls go_on(token) for each token that it generates after
// `prompt`, until go_on returns false.
Status generate_greedily(LogitSource& source, std::span<const std::int32_t> prompt, int n_vocab,
                         const std::function<bool(std::int32_t)>& go_on);

struct GreedyOptions {
  int generated_tokens = 128;                         // maximum
  std::function<bool(std::int32_t)> ends_generation;  // the token that ends a generation is its last
};

struct GreedyRow {
  std::string name;
  std::string label;        // label of a suite's row; empty: none
  std::vector<int> agreed;  // for each prompt: tokens before the first difference
  PlanReport plan;
};

struct GreedyResult {
  int generated_tokens = 0;  // maximum
  std::string text;          // fingerprint of the prompts
  std::vector<int> lengths;  // tokens of the reference's generation for each prompt
  std::vector<GreedyRow> rows;
};

// The first source, the reference, continues each prompt. The others are fed that generation token by token
// for as long as they would generate the same tokens. They use the same step sizes as their own generation
// would, because products of other sizes round differently. advance(1) means that one source has finished one
// prompt.
Result<GreedyResult> evaluate_greedy(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                     std::span<const std::unique_ptr<LogitSource>> sources,
                                     const GreedyOptions& options, const std::function<void(int)>& advance);

struct GreedyFigures {
  double agreed_mean = 0, agreed_lo = 0, agreed_hi = 0;  // tokens; bootstrap 95 % over prompts
  double agreed_median = 0;
  double identical = 0;  // share of prompts with identical generations
};
GreedyFigures summarize(const GreedyResult& result, const GreedyRow& row);

}  // namespace kvant
