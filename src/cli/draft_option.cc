#include "cli/draft_option.h"

#include "eval/cache_size.h"
#include "recipe/recipe.h"
#include "serve/scheduler.h"

namespace kvant {
namespace {

// The draft model reads kDraftStep tokens of a prompt in one step.
constexpr int kDraftStep = 512;

Result<LoadedDraftModel> load(const std::string& path, const Session& target, int context) {
  SessionOptions options = target.options();
  options.model = path;
  options.calibration.clear();
  auto session = Session::open(options, WeightMode::as_stored, context);
  if (!session.ok()) return session.error();
  LoadedDraftModel loaded{.session = std::make_unique<Session>(std::move(*session))};
  auto plan = loaded.session->plan(parse_recipe("bf16").value());
  if (!plan.ok()) return plan.error();
  loaded.bytes = Scheduler::memory_for(largest_cache_bytes(*plan, context, kDraftStep));
  auto model = DraftModel::make(loaded.session->engine(), loaded.session->backend(), *plan, target.engine(),
                                loaded.bytes);
  if (!model.ok()) return model.error();
  loaded.model = std::move(*model);
  return loaded;
}

}  // namespace

void add_draft_options(CLI::App& command, DraftOptions& options) {
  auto* source = command
                     .add_option("--draft", options.source,
                                 "speculative decoding: 'ngram' drafts tokens from repeated n-grams of the "
                                 "sequence and adapts their number; 'off' decodes one token per step")
                     ->check(CLI::IsMember({kNgramDrafts, kNoDrafts}))
                     ->capture_default_str();
  command
      .add_option("--draft-model", options.model,
                  "smaller model (GGUF) with the same tokenizer that drafts the tokens")
      ->excludes(source);
  command.add_option("--draft-max", options.most, "maximum number of drafted tokens that a step verifies")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
}

Result<LoadedDraftModel> load_draft_model(const DraftOptions& options, const Session& target, int context) {
  if (options.model.empty()) return LoadedDraftModel{};
  auto loaded = load(options.model, target, context);
  if (!loaded.ok()) return error("--draft-model: {}", loaded.error().message);
  return loaded;
}

}  // namespace kvant
