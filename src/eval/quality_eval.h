// QualityEval: teacher-forced evaluation of KV caches against a reference, on a text (design section 7).
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

class Tokenizer;

struct QualityOptions {
  int context = 2048;     // tokens of a chunk: even, at least 2
  int chunks = 16;        // at most; 0: as many as the text has
  int step_tokens = 512;  // tokens of the scored half run at a time: bounds the memory for logits to two of
                          // [step_tokens, n_vocab]
  int n_threads = 2;      // for the metrics
  // Run the scored half as part of the prompt, in the recipe's prompt blocks, and not token by token. (With
  // logits, a block is cut at step_tokens in that half.)
  bool all_prompt = false;
};

struct QualityRow {
  std::string name;
  MetricsSummary metrics;
  CacheBits bits;  // at `context` tokens
  ConstantSize constants;
  double seconds = 0;  // in the source
  PlanReport plan;
  std::string label;  // of a suite's row; empty: none
  PositionScores positions;
  std::vector<double> kld_blocks;  // means of the units of the bootstrap
};

struct QualityResult {
  int context = 0;
  int chunks = 0;                // scored
  std::string text;              // fingerprint of the tokens that were run
  std::vector<QualityRow> rows;  // the reference first
};

// The tokens of an evaluation: consecutive chunks from the start of the text, whose first token is the
// model's BOS where it was trained with one (as llama-perplexity does).
struct EvalText {
  std::vector<std::int32_t> tokens;  // of the whole text
  std::int32_t bos = -1;             // -1: the model has none
};
// An error when the text is empty or not UTF-8.
Result<EvalText> tokenize_for_eval(const Tokenizer& tokenizer, const std::string& text);

// Runs the reference and all candidates in lockstep over the text. Scored are the predictions of tokens
// [context / 2 + 1, context) of each chunk. advance(n) is called after n more tokens of one source; the
// sum is tokens_to_run(). An error when the text is shorter than one chunk, or from a source.
Result<QualityResult> evaluate_quality(const EvalText& text, int n_vocab, LogitSource& reference,
                                       std::span<const std::unique_ptr<LogitSource>> candidates,
                                       const QualityOptions& options,
                                       const std::function<void(std::int64_t)>& advance);
// 16 hexadecimal digits that differ where tokens do (FNV-1a).
std::string fingerprint(std::span<const std::int32_t> tokens);
// Chunks that options and the text's length allow.
int chunks_available(const EvalText& text, const QualityOptions& options);
// Calls run(tokens of the chunk) for each of these, until one fails. An error when there are none.
Status for_each_chunk(const EvalText& text, const QualityOptions& options,
                      const std::function<Status(std::span<const std::int32_t>)>& run);

}  // namespace kvant
