// Compares KV caches for `kvant eval` and for kvant.evaluate in Python. The options describe a whole
// evaluation, and the result is one JSON document per context.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/quality_eval.h"
#include "task/eval_rows.h"
#include "task/session.h"

namespace kvant {

struct EvaluationOptions {
  SessionOptions session = {.backend = "reference"};
  // With F32 weights, the cache is the only quantized part.
  WeightMode weights = WeightMode::f32;
  // Lists recipes or "llama.cpp:TYPE". If the list is empty, only the rows of the suite run.
  std::vector<std::string> recipes;
  // Names a suite of eval/suite.h; an empty name runs no suite.
  std::string suite;
  // An empty `reference`, empty `contexts` or -1 for `chunks` selects the suite's value. Without a suite, the
  // values are bf16, 2048 tokens and 16 chunks (3 with `retrieval`).
  std::string reference;
  std::vector<int> contexts;
  int chunks = -1;
  // Lists text files. Each file gives one row per recipe that needs calibration.
  std::vector<std::string> calibrate_on;
  // Measures attention outputs of each layer instead of predictions.
  bool layers = false;
  // Measures answers about documents that are made from the text.
  bool retrieval = false;
  // Measures greedy completions; the text then holds prompts.
  bool greedy = false;
  // Measures the drift along greedy completions; the text then holds prompts.
  bool drift = false;
  // Limits the tokens of a greedy completion, or gives the tokens of a completion of `drift`.
  int generated_tokens = 128;
  // Seeds the documents of `retrieval`.
  std::uint64_t seed = 1;
  // Names a backend to compare with the session's backend; an empty name compares none.
  std::string compare_backend;
  // Adds a row that differs from the reference by rounding alone.
  bool control = false;
  // Runs the scored half of a chunk as a prompt.
  bool all_prompt = false;
  // Adds the scores of all positions to each result of predictions.
  bool positions = false;
};

class Evaluation {
 public:
  // Returns an error for wrong options, before the model is loaded.
  static Result<Evaluation> make(const EvaluationOptions& options);

  // Returns one document per context, which docs/reference/json.md describes. `show` receives tables and
  // titles as they become ready. Returns an error if the model's file or a row fails.
  Result<std::vector<nlohmann::ordered_json>> run(const std::string& text,
                                                  const std::function<void(const std::string&)>& show) const;

 private:
  using Json = nlohmann::ordered_json;
  struct Running;

  Evaluation() = default;
  Result<std::vector<Json>> contexts(Running& running, const std::string& text) const;
  Result<Json> predictions(Running& running, const EvalText& text, const QualityOptions& quality) const;
  Result<std::vector<Json>> retrieval(Running& running, const std::string& text) const;
  Result<std::vector<Json>> completions(Running& running, const std::string& text) const;

  EvaluationOptions options_;
  // The options have already overridden the suite's defaults.
  Suite suite_;
  std::vector<EvalRow> rows_;
};

}  // namespace kvant
