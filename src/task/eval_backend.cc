#include "task/eval_backend.h"

#include <fmt/format.h>

#include "base/progress.h"
#include "eval/engine_source.h"
#include "eval/layer_eval.h"
#include "eval/llama_reference.h"
#include "eval/report_json.h"

namespace kvant {
namespace {

struct ComparedRow {
  QualityRow predictions;
  // Holds the errors of the attention outputs of one row.
  OutputError outputs;
};

// Runs and compares the row of one recipe.
Result<ComparedRow> compare(const Session& session, AttentionBackend& backend, const EvalRow& row,
                            const EvalText& text, const QualityOptions& quality, Progress& progress) {
  if (names_llama(row.name))
    return error("--compare-backend supports kvant's recipes only: leave '{}' out of --kv", row.name);
  const auto own = session.plan(row.recipe, row.calibration_text);
  if (!own.ok()) return own.error();
  const auto other = session.plan(row.recipe, row.calibration_text, &backend);
  if (!other.ok()) return other.error();
  // Both the session's backend and the compared backend run in steps of step_tokens. Matrix products with
  // a different number of rows round differently, and a coarse cache amplifies the difference.
  const auto reference =
      make_engine_source((*own)->name, session.engine(), session.backend(), *own, quality.step_tokens);
  std::vector<std::unique_ptr<LogitSource>> candidates;
  candidates.push_back(
      make_engine_source((*other)->name, session.engine(), backend, *other, quality.step_tokens));
  auto result = evaluate_quality(text, session.engine().n_vocab(), *reference, candidates, quality,
                                 [&](std::int64_t n) { progress.advance(n); });
  if (!result.ok()) return result.error();
  const auto outputs = compare_outputs(text, session.engine(), {session.backend(), *own}, {backend, *other},
                                       quality, [&](std::int64_t n) { progress.advance(n); });
  if (!outputs.ok()) return outputs.error();
  return ComparedRow{result->rows.back(), *outputs};
}

}  // namespace

Result<nlohmann::ordered_json> evaluate_backend(const Session& session, const std::string& name,
                                                const std::vector<EvalRow>& rows, const EvalText& text,
                                                const QualityOptions& quality, const std::string& model,
                                                const std::function<void(const std::string&)>& show) {
  const auto backend = make_backend(name);
  if (!backend.ok()) return backend.error();
  std::vector<double> output_errors;
  QualityResult all{quality.context, chunks_available(text, quality), /*text=*/"", {}};
  {
    const std::int64_t tokens = std::int64_t{3} * all.chunks * quality.context * std::ssize(rows);
    Progress progress("evaluating", tokens, "tokens");
    for (const EvalRow& row : rows) {
      auto compared = compare(session, **backend, row, text, quality, progress);
      if (!compared.ok()) return compared.error();
      all.rows.push_back(std::move(compared->predictions));
      output_errors.push_back(compared->outputs.relative());
    }
  }
  show(fmt::format("each recipe on {}, token by token, compared with the same recipe on --backend\n{}", name,
                   eval_table(all)));
  show("relative RMS error of attention outputs, given the same Q, K and V\n");
  nlohmann::ordered_json document = eval_to_json(all, model);
  for (std::size_t i = 0; i < output_errors.size(); ++i) {
    show(fmt::format("  {:<24} {:7.4f} %\n", all.rows[i].name, 100 * output_errors[i]));
    document["results"][i]["output_error"] = output_errors[i];
  }
  return document;
}

}  // namespace kvant
