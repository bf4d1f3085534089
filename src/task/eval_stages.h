// Runs the measurements that `kvant eval` and `kvant report` share. Each function measures all rows and shows
// a progress bar.
#pragma once

#include <string>
#include <vector>

#include "eval/greedy/drift_eval.h"
#include "eval/greedy/greedy_eval.h"
#include "eval/layer_eval.h"
#include "eval/limits/limit_eval.h"
#include "eval/quality_eval.h"
#include "eval/retrieval/retrieval_eval.h"
#include "task/eval_rows.h"
#include "task/session.h"

namespace kvant {

struct EvalStage {
  const Session& session;
  // Names the model's file.
  std::string model;
  // The first row is the reference.
  std::vector<EvalRow> rows;
  int n_threads = 1;
};

// Measures predictions on a text. Warns if the text has fewer chunks than options.chunks.
Result<QualityResult> run_quality(const EvalStage& stage, const EvalText& text,
                                  const QualityOptions& options);
// Measures the attention outputs of each layer. Returns an error if a row is a cache of llama.cpp.
Result<LayerResult> run_layers(const EvalStage& stage, const EvalText& text, const QualityOptions& options);
// Measures the answers to questions about documents that are made from `text`.
Result<RetrievalResult> run_retrieval(const EvalStage& stage, const std::string& text,
                                      const RetrievalOptions& options);
// Finds the longest documents, made from `text`, for which caches still answer correctly. Contexts that are
// too short to hold a document are left out.
Result<LimitResult> run_limits(const EvalStage& stage, const std::string& text, const LimitOptions& options);
// Compares greedy completions of the prompts with at most generated_tokens tokens each.
Result<GreedyResult> run_greedy(const EvalStage& stage, const std::vector<std::vector<std::int32_t>>& prompts,
                                int generated_tokens);
// Measures the drift of all rows over completions of generated_tokens tokens.
Result<DriftResult> run_drift(const EvalStage& stage, const std::vector<std::vector<std::int32_t>>& prompts,
                              int generated_tokens);

}  // namespace kvant
