// GreedyEval: for how many tokens a cache's greedy generations are the reference's.
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

// Behind what the source has read: calls go_on(token) for each token that it generates after `prompt`, until
// that says no.
Status generate_greedily(LogitSource& source, std::span<const std::int32_t> prompt, int n_vocab,
                         const std::function<bool(std::int32_t)>& go_on);

struct GreedyOptions {
  int generated_tokens = 128;                         // most
  std::function<bool(std::int32_t)> ends_generation;  // the token that ends a generation is its last
};

struct GreedyRow {
  std::string name;
  std::string label;        // of a suite's row; empty: none
  std::vector<int> agreed;  // for each prompt: tokens before the first that differs
  PlanReport plan;
};

struct GreedyResult {
  int generated_tokens = 0;  // most
  std::string text;          // fingerprint of the prompts
  std::vector<int> lengths;  // tokens of the reference's generation for each prompt
  std::vector<GreedyRow> rows;
};

// The first source, the reference, continues each prompt. The others are given that generation token by
// token, for as long as it is what they would have said: in the steps that their own generation would take,
// because products of other sizes round otherwise. advance(1): one source is through with one prompt.
Result<GreedyResult> evaluate_greedy(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                     std::span<const std::unique_ptr<LogitSource>> sources,
                                     const GreedyOptions& options, const std::function<void(int)>& advance);

struct GreedyFigures {
  double agreed_mean = 0, agreed_lo = 0, agreed_hi = 0;  // tokens; bootstrap 95 % over prompts
  double agreed_median = 0;
  double identical = 0;  // share of prompts whose whole generation is the same
};
GreedyFigures summarize(const GreedyResult& result, const GreedyRow& row);

}  // namespace kvant
