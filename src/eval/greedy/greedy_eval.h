// Counts for how many tokens the greedy generations of a cache agree with the reference's. KL divergence
// looks at single tokens; this figure shows when whole generations part ways.
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

// Feeds `prompt` to the source and generates greedily. Calls go_on(token) for each generated token until
// go_on returns false. The source may have read other tokens before the prompt.
Status generate_greedily(LogitSource& source, std::span<const std::int32_t> prompt, int n_vocab,
                         const std::function<bool(std::int32_t)>& go_on);

struct GreedyOptions {
  int generated_tokens = 128;  // limit for each prompt
  // Returns true for a token that ends a generation. The generation includes that token.
  std::function<bool(std::int32_t)> ends_generation;
};

struct GreedyRow {
  std::string name;
  // Holds the label of a suite's row; empty without a suite.
  std::string label;
  // Holds for each prompt the number of tokens before the first difference from the reference.
  std::vector<int> agreed;
  PlanReport plan;
};

struct GreedyResult {
  int generated_tokens = 0;  // limit for each prompt
  // Holds the fingerprint of the prompts.
  std::string text;
  // Holds for each prompt the number of tokens that the reference generated.
  std::vector<int> lengths;
  std::vector<GreedyRow> rows;
};

// The first source is the reference and continues each prompt. Each other source is fed the reference's
// generation token by token, for as long as the source would generate the same tokens. Every source runs in
// the steps of its own generation, because matrix products of other sizes round differently. advance(1)
// reports that one source has finished one prompt.
Result<GreedyResult> evaluate_greedy(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                     std::span<const std::unique_ptr<LogitSource>> sources,
                                     const GreedyOptions& options, const std::function<void(int)>& advance);

struct GreedyFigures {
  // The figures count tokens; agreed_lo and agreed_hi bound the bootstrap 95 % interval over prompts.
  double agreed_mean = 0, agreed_lo = 0, agreed_hi = 0;
  double agreed_median = 0;
  // Gives the share of the prompts whose generations are identical, 0 .. 1.
  double identical = 0;
};
GreedyFigures summarize(const GreedyResult& result, const GreedyRow& row);

}  // namespace kvant
