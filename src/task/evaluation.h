// Compares KV caches, for kvant eval and for kvant.evaluate in Python.
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
  WeightMode weights = WeightMode::f32;  // leaves the cache as the only quantized part
  std::vector<std::string> recipes;      // recipes or "llama.cpp:TYPE"; empty: only those of the suite
  std::string suite;                     // name of a suite in eval/suite.h; empty: none
  // If one of these is empty or -1, the suite decides, and then QualityOptions.
  std::string reference;
  std::vector<int> contexts;
  int chunks = -1;
  std::vector<std::string> calibrate_on;  // text files; each gives a row per recipe that needs calibration
  bool layers = false;                    // measures attention outputs of each layer instead of predictions
  bool retrieval = false;                 // measures answers about documents made from the text
  bool greedy = false;                    // measures greedy completions; the text holds prompts
  int generated_tokens = 128;             // length of greedy completions
  std::uint64_t seed = 1;                 // seed of the retrieval documents
  std::string compare_backend;            // backend to compare with the session's; empty: none
  bool control = false;                   // adds a row that differs by rounding alone
  bool all_prompt = false;                // runs the scored half as a prompt
  bool positions = false;                 // adds the scores of all positions to each result of predictions
};

class Evaluation {
 public:
  // Returns an error, before anything is loaded, if the options are wrong.
  static Result<Evaluation> make(const EvaluationOptions& options);

  // Returns one document per context; docs/reference/json.md describes them. `show` gets tables and titles as
  // they become ready. Errors come from the model's file or from a row.
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
  Suite suite_;  // the suite, after the options have overridden it
  std::vector<EvalRow> rows_;
};

}  // namespace kvant
