// Evaluates KV caches on a text. Every cache reads the true text (teacher forcing). The predictions in the
// second half of each chunk are compared with the reference's.
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

// A chunk of fewer tokens has no scored position.
inline constexpr int kFewestChunkTokens = 4;

struct QualityOptions {
  int context = 2048;  // tokens of a chunk, an even number of at least kFewestChunkTokens
  // At most this many chunks are scored. 0 means as many as the text has.
  int chunks = 16;
  // A step runs this many tokens of the scored half. The number limits the memory for logits to two arrays of
  // [step_tokens, n_vocab].
  int step_tokens = 512;
  int n_threads = 2;  // threads for the metrics
  // If true, the scored half runs in the recipe's prompt blocks instead of token by token. Blocks of the
  // scored half also end at multiples of step_tokens, because their logits are needed.
  bool all_prompt = false;
};

struct QualityRow {
  std::string name;
  MetricsSummary metrics;
  CacheBits bits;  // bits at `context` tokens
  ConstantSize constants;
  double seconds = 0;  // seconds in the source's step()
  PlanReport plan;
  // Holds the label of a suite's row. The label is empty without a suite.
  std::string label;
  PositionScores positions;
  // Holds the mean divergence of each unit of the bootstrap.
  std::vector<double> kld_blocks;
};

struct QualityResult {
  int context = 0;
  int chunks = 0;  // number of scored chunks
  // Holds the fingerprint of the tokens that ran.
  std::string text;
  // The first row is the reference.
  std::vector<QualityRow> rows;
};

// Holds the tokens of an evaluation, which runs consecutive chunks from the start of the text. Each chunk
// begins with the model's BOS token if the model was trained with one, as in llama-perplexity.
struct EvalText {
  std::vector<std::int32_t> tokens;  // tokens of the whole text
  std::int32_t bos = -1;             // -1 means that the model has no BOS token
};
// Returns an error if the text is empty or not UTF-8.
Result<EvalText> tokenize_for_eval(const Tokenizer& tokenizer, const std::string& text);

// Runs the reference and all candidates in lockstep over the text. Scores the predictions of the tokens
// [context / 2 + 1, context) of each chunk. advance(n) is called after n more tokens of one source, and the
// sum of all n is context * chunks for each source. Returns an error if the text is shorter than one chunk,
// or if a source fails.
Result<QualityResult> evaluate_quality(const EvalText& text, int n_vocab, LogitSource& reference,
                                       std::span<const std::unique_ptr<LogitSource>> candidates,
                                       const QualityOptions& options,
                                       const std::function<void(std::int64_t)>& advance);
// Returns an FNV-1a hash of the tokens as 16 hexadecimal digits.
std::string fingerprint(std::span<const std::int32_t> tokens);
// Returns the number of chunks that the options and the length of the text allow.
int chunks_available(const EvalText& text, const QualityOptions& options);
// Calls run(tokens of the chunk) for each chunk, in order, until a call fails. Returns the error of that
// call, or an error if the text has no chunk.
Status for_each_chunk(const EvalText& text, const QualityOptions& options,
                      const std::function<Status(std::span<const std::int32_t>)>& run);

}  // namespace kvant
