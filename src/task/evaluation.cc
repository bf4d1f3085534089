#include "task/evaluation.h"

#include <algorithm>

#include "base/text_file.h"
#include "base/warn.h"
#include "eval/greedy/drift_report.h"
#include "eval/greedy/greedy_report.h"
#include "eval/greedy/prompts.h"
#include "eval/layer_report.h"
#include "eval/llama_reference.h"
#include "eval/report_json.h"
#include "eval/retrieval/retrieval_report.h"
#include "model/tokenizer.h"
#include "task/eval_backend.h"
#include "task/eval_stages.h"

namespace kvant {
namespace {

Result<Suite> suite_of(const EvaluationOptions& options) {
  Suite suite{.chunks = options.retrieval ? 3 : QualityOptions{}.chunks};
  if (!options.suite.empty()) {
    auto found = find_suite(options.suite);
    if (!found.ok()) return found.error();
    suite = std::move(found).value();
  }
  for (const std::string& recipe : options.recipes) suite.rows.push_back({"", recipe});
  if (!options.reference.empty()) suite.reference = options.reference;
  if (!options.contexts.empty()) suite.contexts = options.contexts;
  if (options.chunks >= 0) suite.chunks = options.chunks;
  suite.layers = suite.layers || options.layers;
  suite.retrieval = suite.retrieval || options.retrieval;
  suite.all_prompt = suite.all_prompt || options.all_prompt;
  for (const int context : suite.contexts) {
    if (context < kFewestChunkTokens || context % 2 != 0)
      return error("the context of {} tokens must be even, and at least {}", context, kFewestChunkTokens);
  }
  return suite;
}

void add_positions(const QualityResult& result, nlohmann::ordered_json& document) {
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    nlohmann::ordered_json& row = document["results"][i];
    row["kld_positions"] = result.rows[i].positions.kld;
    row["same_top"] = result.rows[i].positions.same_top;
  }
}

}  // namespace

struct Evaluation::Running {
  EvalStage stage;
  const std::function<void(const std::string&)>& show;
};

Result<Evaluation> Evaluation::make(const EvaluationOptions& options) {
  Evaluation evaluation;
  evaluation.options_ = options;
  // A row's calibration text is needed only after the rows before it have run, so the function reports a
  // missing file now.
  for (const std::string& file : options.calibrate_on) {
    if (const auto text = read_text_file(file); !text.ok()) return text.error();
  }
  auto suite = suite_of(options);
  if (!suite.ok()) return suite.error();
  evaluation.suite_ = std::move(suite).value();
  if (!options.compare_backend.empty())
    KVANT_RETURN_IF_ERROR(check_on_cpu(options.session, "--compare-backend"));
  auto rows =
      parse_eval_rows(evaluation.suite_.reference, evaluation.suite_.rows, QualityOptions{}.step_tokens);
  if (!rows.ok()) return rows.error();
  evaluation.rows_ = std::move(rows).value();
  if (options.control) evaluation.rows_.push_back(control_row());
  return evaluation;
}

Result<std::vector<nlohmann::ordered_json>> Evaluation::run(
    const std::string& text, const std::function<void(const std::string&)>& show) const {
  const int longest = *std::max_element(suite_.contexts.begin(), suite_.contexts.end());
  const bool has_prompts = options_.greedy || options_.drift;
  const auto session = Session::open(options_.session, options_.weights, has_prompts ? 0 : longest);
  if (!session.ok()) return session.error();
  const Geometry& geometry = session->engine().geometry();
  if (!has_prompts) warn_beyond_training(geometry, longest);
  auto rows = calibrated_on(rows_, options_.calibrate_on, geometry);
  const bool learns = std::ranges::any_of(rows, [](const EvalRow& r) { return !r.calibration_text.empty(); });
  if (!options_.calibrate_on.empty() && !learns)
    warn("none of these recipes needs calibration: --calibrate-on has no effect");
  Running running{{*session, options_.session.model, std::move(rows), options_.session.n_threads}, show};
  if (!suite_.title.empty()) show(suite_.title + "\n");
  auto documents = has_prompts        ? completions(running, text)
                   : suite_.retrieval ? retrieval(running, text)
                                      : contexts(running, text);
  if (!documents.ok()) return documents.error();
  for (Json& document : *documents) {
    if (!suite_.name.empty()) document["suite"] = suite_.name;
  }
  return documents;
}

Result<std::vector<nlohmann::ordered_json>> Evaluation::contexts(Running& running,
                                                                 const std::string& text) const {
  const auto tokens = tokenize_for_eval(running.stage.session.engine().tokenizer(), text);
  if (!tokens.ok()) return tokens.error();
  std::vector<Json> documents;
  for (const int context : suite_.contexts) {
    const QualityOptions quality{.context = context,
                                 .chunks = suite_.chunks,
                                 .n_threads = options_.session.n_threads,
                                 .all_prompt = suite_.all_prompt};
    auto document = predictions(running, *tokens, quality);
    if (!document.ok()) return document.error();
    documents.push_back(std::move(document).value());
  }
  return documents;
}

// Returns the document of one context. The document holds predictions, or the measurement that the options
// select instead.
Result<nlohmann::ordered_json> Evaluation::predictions(Running& running, const EvalText& text,
                                                       const QualityOptions& quality) const {
  const EvalStage& stage = running.stage;
  if (!options_.compare_backend.empty()) {
    return evaluate_backend(stage.session, options_.compare_backend, stage.rows, text, quality, stage.model,
                            running.show);
  }
  if (suite_.layers) {
    const auto result = run_layers(stage, text, quality);
    if (!result.ok()) return result.error();
    running.show(layers_table(*result));
    return layers_to_json(*result, stage.model);
  }
  const auto result = run_quality(stage, text, quality);
  if (!result.ok()) return result.error();
  running.show(eval_table(*result));
  for (const QualityRow& row : result->rows) {
    if (names_llama(row.name)) running.show(row.plan.summary + "\n");
  }
  Json document = eval_to_json(*result, stage.model);
  if (options_.positions) add_positions(*result, document);
  return document;
}

Result<std::vector<nlohmann::ordered_json>> Evaluation::retrieval(Running& running,
                                                                  const std::string& text) const {
  const RetrievalOptions retrieval{suite_.contexts, std::max(suite_.chunks, 1), options_.seed};
  const auto result = run_retrieval(running.stage, text, retrieval);
  if (!result.ok()) return result.error();
  running.show(retrieval_table(*result));
  return std::vector<Json>{retrieval_to_json(*result, running.stage.model)};
}

Result<std::vector<nlohmann::ordered_json>> Evaluation::completions(Running& running,
                                                                    const std::string& text) const {
  auto prompts = parse_prompts(text);
  if (!prompts.ok()) return prompts.error();
  const auto maximum = static_cast<std::size_t>(suite_.chunks);
  if (maximum > 0 && prompts->size() > maximum) prompts->resize(maximum);
  const EvalStage& stage = running.stage;
  const auto encoded = encode_prompts(stage.session.engine().tokenizer(), *prompts);
  if (!encoded.ok()) return encoded.error();
  if (options_.drift) {
    const auto result = run_drift(stage, *encoded, options_.generated_tokens);
    if (!result.ok()) return result.error();
    running.show(drift_table(*result));
    return std::vector<Json>{drift_to_json(*result, stage.model)};
  }
  const auto result = run_greedy(stage, *encoded, options_.generated_tokens);
  if (!result.ok()) return result.error();
  running.show(greedy_table(*result));
  return std::vector<Json>{greedy_to_json(*result, stage.model)};
}

}  // namespace kvant
