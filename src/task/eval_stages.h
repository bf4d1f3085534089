// What kvant eval and kvant report measure: each stage runs all rows, with a progress bar.
#pragma once

#include <string>
#include <vector>

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
  std::string model;          // the file
  std::vector<EvalRow> rows;  // the reference first
  int n_threads = 1;
};

// Predictions on a text. Warns where it has fewer chunks than were asked for.
Result<QualityResult> run_quality(const EvalStage& stage, const EvalText& text,
                                  const QualityOptions& options);
// Attention outputs of each layer: rows of kvant's caches only.
Result<LayerResult> run_layers(const EvalStage& stage, const EvalText& text, const QualityOptions& options);
// Answers about documents made from `text`.
Result<RetrievalResult> run_retrieval(const EvalStage& stage, const std::string& text,
                                      const RetrievalOptions& options);
// Up to which length of documents made from `text` caches answer; contexts too short for one are left out.
Result<LimitResult> run_limits(const EvalStage& stage, const std::string& text, const LimitOptions& options);
// Greedy generations for prompts, of at most generated_tokens.
Result<GreedyResult> run_greedy(const EvalStage& stage, const std::vector<std::vector<std::int32_t>>& prompts,
                                int generated_tokens);

}  // namespace kvant
