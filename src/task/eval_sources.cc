#include "task/eval_sources.h"

#include "eval/cache_size.h"
#include "eval/engine_source.h"

namespace kvant {

Result<std::vector<std::unique_ptr<LogitSource>>> EvalSources::make(const std::vector<EvalRow>& rows,
                                                                    std::int64_t extra_bytes) {
  std::vector<std::unique_ptr<LogitSource>> made;
  for (const EvalRow& row : rows) {
    auto source = make(row);
    if (!source.ok()) return source.error();
    made.push_back(std::move(source).value());
  }
  KVANT_RETURN_IF_ERROR(session_.check_cache_memory(
      fmt::format("evaluating {} caches of {} tokens", made.size(), context_), cache_bytes_, extra_bytes));
  return made;
}

Result<std::unique_ptr<LogitSource>> EvalSources::make(const EvalRow& row) {
  if (names_llama(row.name)) return make_llama(row);
  const auto plan = session_.plan(row.recipe, row.calibration_text);
  if (!plan.ok()) return plan.error();
  cache_bytes_ += largest_batch_bytes(*plan, context_, {.n_seqs = n_texts_, .step_tokens = kUsualStep});
  // The plan has the name of the recipe that is served. A row whose name is not the name of its recipe, such
  // as the control row, keeps its own name.
  const std::string& name = row.name == label(row.recipe) ? (*plan)->name : row.name;
  return make_engine_source(name, session_.engine(), session_.backend(), *plan, row.step_tokens);
}

Result<std::unique_ptr<LogitSource>> EvalSources::make_llama(const EvalRow& row) {
  if (llama_ == nullptr) {
    auto loaded = LlamaReference::load_f32(
        model_, {session_.device(), session_.caches_on_device(), session_.engine().geometry()});
    if (!loaded.ok()) return loaded.error();
    llama_ = std::move(loaded).value();
  }
  return llama_->source(row.name, context_, row.step_tokens, n_threads_);
}

}  // namespace kvant
