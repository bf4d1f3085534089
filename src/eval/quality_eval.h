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
  int context = 2048;  // tokens of a chunk: even, at least 2
  int chunks = 16;     // maximum; 0: as many as the text has
  // The number of tokens of the scored half that run at a time. It bounds the memory for logits to two arrays
  // of [step_tokens, n_vocab].
  int step_tokens = 512;
  int n_threads = 2;  // for the metrics
  // Runs the scored half as part of the prompt, in the recipe's prompt blocks, and not token by token. (With
  // logits, blocks in that half end at step_tokens.)
  bool all_prompt = false;
};

struct QualityRow {
  std::string name;
  MetricsSummary metrics;
  CacheBits bits;  // at `context` tokens
  ConstantSize constants;
  double seconds = 0;  // time spent in the source
  PlanReport plan;
  std::string label;  // label of a suite's row; empty: none
  PositionScores positions;
  std::vector<double> kld_blocks;  // means of the bootstrap's units
};

struct QualityResult {
  int context = 0;
  int chunks = 0;                // scored
  std::string text;              // fingerprint of the tokens that ran
  std::vector<QualityRow> rows;  // the reference comes first
};

// The tokens of an evaluation: consecutive chunks from the start of the text. Each begins with the model's
// BOS if it was trained with one (as in llama-perplexity).
struct EvalText {
  std::vector<std::int32_t> tokens;  // of the whole text
  std::int32_t bos = -1;             // -1: the model has none
};
// Returns an error if the text is empty or not UTF-8.
Result<EvalText> tokenize_for_eval(const Tokenizer& tokenizer, const std::string& text);

// Runs the reference and all candidates in lockstep over the text. It scores the predictions of tokens
// [context / 2 + 1, context) of each chunk. advance(n) is called after n more tokens of one source; the sum
// is tokens_to_run(). Returns an error if the text is shorter than one chunk, or if a source fails.
Result<QualityResult> evaluate_quality(const EvalText& text, int n_vocab, LogitSource& reference,
                                       std::span<const std::unique_ptr<LogitSource>> candidates,
                                       const QualityOptions& options,
                                       const std::function<void(std::int64_t)>& advance);
// Returns 16 hexadecimal digits that differ if tokens differ (FNV-1a).
std::string fingerprint(std::span<const std::int32_t> tokens);
// Returns the number of chunks that the options and the text's length allow.
int chunks_available(const EvalText& text, const QualityOptions& options);
// Calls run(tokens of the chunk) for each of these until one fails. Returns an error if there are none.
Status for_each_chunk(const EvalText& text, const QualityOptions& options,
                      const std::function<Status(std::span<const std::int32_t>)>& run);

}  // namespace kvant
