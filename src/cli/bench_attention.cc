// kvant bench attention measures the attention of one token at several contexts, next to ggml's attention
// with and without flash attention. The command needs no model: it fills the caches with random values.
#include <algorithm>
#include <cstdio>
#include <map>

#include "attention/plan_report.h"
#include "base/json_file.h"
#include "base/progress.h"
#include "base/warn.h"
#include "bench/attention_bench.h"
#include "bench/attention_report.h"
#include "bench/cache_attention.h"
#include "bench/ggml_attention.h"
#include "bench/last_level_cache.h"
#include "bench/library_attention.h"
#include "bench/read_bandwidth.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "eval/cache_size.h"
#include "eval/llama_reference.h"
#include "task/session.h"

namespace kvant {
namespace {

struct AttentionOptions {
  ModelOptions common;
  AttentionHeads shape;
  std::vector<int> contexts = {4096, 32768, 131072};
  int repeats = 10;
  bool library = false;
};

using PlansByContext = std::map<int, std::shared_ptr<const Plan>>;

struct RecipePlans {
  std::string name;
  PlansByContext plans;
};

// Returns the bytes that the layers of one contender need together. Twice the size of the last-level cache
// keeps a layer from being read from that cache.
std::int64_t working_set() {
  return 2 * last_level_cache_bytes();
}

Result<RecipePlans> plans_of(const std::string& text, const AttentionOptions& options) {
  if (names_llama(text) || text.starts_with("ggml:")) {
    return error("'{}' is not a recipe: leave it out of --kv; this benchmark always includes ggml's caches",
                 text);
  }
  const auto recipe = parse_recipe(text);
  if (!recipe.ok()) return recipe.error();
  const auto backend = make_backend(options.common.backend);
  if (!backend.ok()) return backend.error();
  RecipePlans made{label(*recipe), {}};
  for (const int context : options.contexts) {
    auto plan = plan_without_model(*recipe, options.shape, context, working_set(), (*backend)->page_order());
    if (!plan.ok()) return plan.error();
    if (options.common.strict) KVANT_RETURN_IF_ERROR(check_fallbacks(report_plan(**plan, **backend)));
    made.plans[context] = std::move(plan).value();
  }
  return made;
}

Result<std::vector<RecipePlans>> all_plans(const AttentionOptions& options) {
  std::vector<RecipePlans> made;
  for (const std::string& text : row_names(options.common)) {
    auto plans = plans_of(text, options);
    if (!plans.ok()) return plans.error();
    made.push_back(std::move(plans).value());
  }
  return made;
}

int ggml_layers(const GgmlCache& cache, const AttentionHeads& shape, int context) {
  return rotation_layers(ggml_layer_bytes(cache, shape, context), working_set(), /*least=*/1);
}

// Returns an error if the contenders of one context do not fit into memory together, because all of them
// exist at once.
Status check_all_memory(const AttentionOptions& options, const std::vector<RecipePlans>& recipes,
                        const std::vector<GgmlCache>& rivals) {
  for (const int context : options.contexts) {
    double bytes = 0;
    for (const RecipePlans& recipe : recipes)
      bytes += (options.library ? 2.0 : 1.0) *
               static_cast<double>(predicted_cache_bytes(*recipe.plans.at(context), context));
    for (const GgmlCache& rival : rivals) {
      bytes += ggml_layer_bytes(rival, options.shape, context) * ggml_layers(rival, options.shape, context);
    }
    KVANT_RETURN_IF_ERROR(
        check_memory(fmt::format("a set of {} caches of {} tokens", recipes.size() + rivals.size(), context),
                     static_cast<std::int64_t>(bytes)));
  }
  return {};
}

AttentionEntry entry_of(const RecipePlans& recipe, const ModelOptions& options) {
  return {recipe.name, [&recipe, &options](int context) -> Result<std::unique_ptr<AttentionContender>> {
            auto backend = make_backend(options.backend);
            if (!backend.ok()) return backend.error();
            auto made = CacheAttention::make(recipe.plans.at(context), std::move(backend).value(), context,
                                             options.n_threads);
            if (!made.ok()) return made.error();
            return std::unique_ptr<AttentionContender>(std::move(made).value());
          }};
}

AttentionEntry library_entry(const RecipePlans& recipe) {
  return {"libkvant_cpu:" + recipe.name,
          [&recipe](int context) -> Result<std::unique_ptr<AttentionContender>> {
            auto made = LibraryAttention::make(recipe.plans.at(context), context);
            if (!made.ok()) return made.error();
            return std::unique_ptr<AttentionContender>(std::move(made).value());
          }};
}

AttentionEntry ggml_entry(const GgmlCache& cache, const AttentionOptions& options) {
  return {std::string("ggml:") + cache.name,
          [cache, &options](int context) -> Result<std::unique_ptr<AttentionContender>> {
            constexpr std::uint64_t kSeed = 2;
            auto made = GgmlAttention::make(
                cache, options.shape, random_attention_values(options.shape, kSeed), context,
                ggml_layers(cache, options.shape, context), options.common.n_threads);
            if (!made.ok()) return made.error();
            return std::unique_ptr<AttentionContender>(std::move(made).value());
          }};
}

// Returns the caches that ggml can store at the shape's head size, and prints the caches that ggml cannot
// store.
std::vector<GgmlCache> rivals_at(const AttentionHeads& shape) {
  std::vector<GgmlCache> rivals;
  for (const GgmlCache& cache : kGgmlCaches) {
    if (ggml_stores(cache, shape.head_dim)) {
      rivals.push_back(cache);
    } else {
      warn(fmt::format("ggml has no {} cache for a head size of {}: the row is left out", cache.name,
                       shape.head_dim));
    }
  }
  return rivals;
}

void print_plans(const std::vector<RecipePlans>& recipes, const AttentionBackend& backend) {
  for (const RecipePlans& recipe : recipes) {
    for (const auto& [context, plan] : recipe.plans) {
      say("{} tokens, {} layers, {}", context, plan->geometry.n_layers,
          plan_table(report_plan(*plan, backend)));
    }
  }
}

Result<double> read_bandwidth(const AttentionOptions& options) {
  const std::int64_t bytes = 8 * last_level_cache_bytes();
  KVANT_RETURN_IF_ERROR(check_memory("the measurement of memory bandwidth", bytes));
  return measure_read_bandwidth(static_cast<std::size_t>(bytes), options.common.n_threads);
}

Result<std::vector<AttentionRow>> run_all(const AttentionOptions& options,
                                          const std::vector<RecipePlans>& recipes,
                                          const std::vector<GgmlCache>& rivals) {
  std::vector<AttentionEntry> entries;
  entries.reserve(2 * recipes.size() + rivals.size());
  for (const RecipePlans& recipe : recipes) {
    entries.push_back(entry_of(recipe, options.common));
    if (options.library) entries.push_back(library_entry(recipe));
  }
  for (const GgmlCache& rival : rivals) entries.push_back(ggml_entry(rival, options));
  const int units = attention_bench_units(entries.size(), options.contexts.size(), options.repeats);
  Progress progress("benchmark", units, "runs");
  return run_attention_bench(entries, options.contexts, options.repeats, [&](int n) { progress.advance(n); });
}

Status report(const std::vector<AttentionRow>& rows, const AttentionSettings& settings,
              const std::string& json_path) {
  fmt::print("{}", attention_table(rows, settings));
  fmt::print(
      "{} query heads, {} KV heads, head size {}, one query token, {} threads; medians of {} interleaved "
      "runs; caches filled with synthetic values; read bandwidth {:.1f} GB/s; limit: time to read the cache "
      "at that bandwidth; rivals: ggml rows with at least as many bits\n",
      settings.shape.n_heads, settings.shape.n_kv_heads, settings.shape.head_dim, settings.n_threads,
      settings.repeats, settings.read_bandwidth / 1e9);
  if (json_path.empty()) return {};
  return write_whole_file(json_path, attention_to_json(rows, settings));
}

Status bench_attention(AttentionOptions options) {
  auto& contexts = options.contexts;
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  const auto recipes = all_plans(options);
  if (!recipes.ok()) return recipes.error();
  const std::vector<GgmlCache> rivals = rivals_at(options.shape);
  KVANT_RETURN_IF_ERROR(check_all_memory(options, *recipes, rivals));
  if (options.common.verbose) print_plans(*recipes, **make_backend(options.common.backend));
  const auto bandwidth = read_bandwidth(options);
  if (!bandwidth.ok()) return bandwidth.error();
  const auto rows = run_all(options, *recipes, rivals);
  if (!rows.ok()) return rows.error();
  return report(*rows, {options.shape, options.common.n_threads, options.repeats, *bandwidth},
                options.common.json);
}

}  // namespace

Command add_bench_attention_command(CLI::App& bench) {
  auto options = std::make_shared<AttentionOptions>();
  CLI::App* command = bench.add_subcommand(
      "attention", "measure attention alone, without a model, and compare it with ggml's");
  // The parent command `bench` requires a model, but `bench attention` does not.
  command->preparse_callback([model = bench.get_option("--model")](std::size_t) { model->required(false); });
  AttentionHeads& shape = options->shape;
  command->add_option("--heads", shape.n_heads, "number of query heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--kv-heads", shape.n_kv_heads, "number of KV heads; must divide --heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--dim", shape.head_dim, "channels per head")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("-c,--ctx", options->contexts, "tokens in the cache")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("-r,--repetitions", options->repeats, "number of runs, of which the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--library", options->library, "also measure the recipes' formats in libkvant_cpu");
  add_recipe_options(*command, options->common, /*many_recipes=*/true);
  return {command, [options] { return bench_attention(*options); }};
}

}  // namespace kvant
