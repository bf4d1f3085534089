// What a comparison of KV caches measures: kvant eval, and kvant.evaluate in Python.
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
  WeightMode weights = WeightMode::f32;  // so that only the cache is quantized
  std::vector<std::string> recipes;      // or "llama.cpp:TYPE"; empty: the suite's alone
  std::string suite;                     // eval/suite.h; empty: none
  // Where these are empty or -1, the suite has a say, and then QualityOptions.
  std::string reference;
  std::vector<int> contexts;
  int chunks = -1;
  std::vector<std::string> calibrate_on;  // texts' files: a row for each of a recipe that needs calibration
  bool layers = false;                    // attention outputs of each layer instead of predictions
  bool retrieval = false;                 // answers about documents made from the text
  bool greedy = false;                    // greedy generations; the text has prompts
  int generated_tokens = 128;             // of greedy generations
  std::uint64_t seed = 1;                 // of retrieval
  std::string compare_backend;            // against the session's, instead of recipes; empty: none
  bool control = false;                   // a row of rounding alone
  bool all_prompt = false;                // the scored half is run as a prompt
  bool positions = false;                 // each result of predictions has the scores of all positions, too
};

class Evaluation {
 public:
  // Errors: what is wrong with the options, before anything is loaded.
  static Result<Evaluation> make(const EvaluationOptions& options);

  // The documents, one for each context, as docs/reference/json.md describes them. show: gets tables and
  // titles as they are ready. Errors: from the model's file or from a row.
  Result<std::vector<nlohmann::ordered_json>> run(const std::string& text,
                                                  const std::function<void(const std::string&)>& show) const;

 private:
  using Json = nlohmann::ordered_json;
  struct Running;

  Evaluation() = default;
  Result<std::vector<Json>> contexts(Running& running, const std::string& text) const;
  Result<Json> predictions(Running& running, const EvalText& text, const QualityOptions& quality) const;
  Result<std::vector<Json>> retrieval(Running& running, const std::string& text) const;
  Result<std::vector<Json>> greedy(Running& running, const std::string& text) const;

  EvaluationOptions options_;
  Suite suite_;  // with what the options say about it
  std::vector<EvalRow> rows_;
};

}  // namespace kvant
