// Counts for how many tokens the greedy generations of a cache agree with the reference's. KL divergence
// compares predictions of single tokens. The count shows where whole generations diverge.
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
  int generated_tokens = 128;  // at most this many tokens are generated for each prompt
  // Returns true for a token that ends a generation. The generation includes that token.
  std::function<bool(std::int32_t)> ends_generation;
};

struct GreedyRow {
  std::string name;
  // Holds the label of a suite's row. The label is empty without a suite.
  std::string label;
  // For each prompt, this list has the number of tokens before the first difference from the reference.
  std::vector<int> agreed;
  PlanReport plan;
};

struct GreedyResult {
  int generated_tokens = 0;  // limit for each prompt
  // Holds the fingerprint of the prompts.
  std::string text;
  // For each prompt, this list has the number of tokens that the reference generated.
  std::vector<int> lengths;
  std::vector<GreedyRow> rows;
};

// Compares the greedy continuations of the sources for each prompt. The first source is the reference and
// continues each prompt. Each other source reads the reference's generation token by token, as long as the
// source would generate the same tokens. Every source runs in the same steps as in its own generation. Matrix
// products of other sizes would round differently. advance(1) reports that one source has finished one
// prompt.
Result<GreedyResult> evaluate_greedy(std::span<const std::vector<std::int32_t>> prompts, int n_vocab,
                                     std::span<const std::unique_ptr<LogitSource>> sources,
                                     const GreedyOptions& options, const std::function<void(int)>& advance);

struct GreedyFigures {
  // The figures count tokens. agreed_lo and agreed_hi bound the 95 % interval of a bootstrap over prompts.
  double agreed_mean = 0, agreed_lo = 0, agreed_hi = 0;
  double agreed_median = 0;
  // `identical` is the share of the prompts whose generations are identical, 0 .. 1.
  double identical = 0;
};
GreedyFigures summarize(const GreedyResult& result, const GreedyRow& row);

}  // namespace kvant
