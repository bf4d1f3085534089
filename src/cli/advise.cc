// kvant advise recommends a cache for a model, a context and an amount of memory.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "bench/advice.h"
#include "bench/engine_bench.h"
#include "calibrate/default_text.h"
#include "calibrate/needs.h"
#include "calibrate/size_budget.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "eval/cache_size.h"
#include "eval/engine_source.h"
#include "eval/quality_eval.h"
#include "eval/reading_speed.h"
#include "task/session.h"

namespace kvant {
namespace {

struct AdviseOptions {
  ModelOptions common;
  // Names the type of the weights while quality is judged.
  std::string weights = kUsualWeights;
  std::string memory, text_file;
  int context = 0;
  int batch = 1;
  QualityOptions quality{.context = 1024, .chunks = 2};
};

struct Candidate {
  Recipe recipe;
  AdviceRow row;
};

class Adviser {
 public:
  explicit Adviser(const AdviseOptions& options) : options_(options) {}

  Result<Advice> run() {
    KVANT_RETURN_IF_ERROR(list());
    if (std::any_of(candidates_.begin(), candidates_.end(), is_measurable)) {
      KVANT_RETURN_IF_ERROR(measure_quality());
      KVANT_RETURN_IF_ERROR(measure_speed());
    }
    std::vector<AdviceRow> rows;
    for (Candidate& candidate : candidates_) rows.push_back(std::move(candidate.row));
    return advise(std::move(rows));
  }
  std::int64_t weights() const { return weights_; }
  std::int64_t memory() const { return memory_; }
  int context() const { return context_; }

 private:
  Result<std::vector<Recipe>> recipes() const {
    std::vector<Recipe> recipes;
    if (!names_recipes(options_.common)) {
      for (const Recipe& recipe : builtin_recipes())
        if (recipe.tier == Tier::product) recipes.push_back(recipe);
      return recipes;
    }
    for (const std::string& name : row_names(options_.common)) {
      auto recipe = parse_recipe(name);
      if (!recipe.ok()) return recipe.error();
      recipes.push_back(std::move(*recipe));
    }
    return recipes;
  }

  // Lists the candidates and decides which candidates fit into memory.
  Status list() {
    auto session = Session::open(options_.common, WeightMode::as_stored, options_.context);
    if (!session.ok()) return session.error();
    const Engine& engine = session->engine();
    const Geometry& g = engine.geometry();
    const bool apart = session->device() != nullptr && !session->caches_on_device();
    const std::int64_t on_host = engine.host_weight_bytes();
    // Counts the weights that lie in the memory of the caches.
    weights_ = apart ? on_host : engine.weight_bytes() - on_host;
    memory_ = session->free_cache_bytes() + weights_;
    if (!options_.memory.empty()) {
      const auto given = parse_bytes(options_.memory);
      if (!given.ok()) return error("--memory: {}", given.error().message);
      memory_ = *given;
    }
    context_ = options_.context > 0 ? options_.context : std::max(g.trained_context, kPageTokens);
    warn_beyond_training(g, context_);
    auto all = recipes();
    if (!all.ok()) return all.error();
    for (Recipe& recipe : *all) {
      const auto known = session->known_constants(recipe);
      const auto preview = session->preview(recipe, known.ok() ? *known : nullptr);
      // Neither a model nor a device has to support every recipe, so a recipe that was not asked for is
      // skipped.
      if (!preview.ok()) {
        if (names_recipes(options_.common)) return preview.error();
        continue;
      }
      const Plan& plan = *preview->plan;
      const bool is_listed = std::ranges::any_of(
          candidates_, [&](const Candidate& other) { return other.row.recipe == plan.name; });
      // The list already has the uncalibrated recipe that replaces `recipe`.
      if (is_listed) continue;
      AdviceRow row{.recipe = plan.name,
                    .bytes = largest_batch_bytes(preview->plan, context_, {options_.batch, kUsualStep})};
      row.asked = label(recipe);
      row.fits = weights_ + row.bytes <= memory_;
      if (preview->stands_in) {
        row.note =
            known.ok() ? "not calibrated: run kvant calibrate --kv " + row.recipe : known.error().message;
      }
      if (plan.calibration == CalibrationState::missing)
        row.caveat = fmt::format("used in place of {}, which is not calibrated for this model", row.asked);
      candidates_.push_back({std::move(recipe), std::move(row)});
    }
    return {};
  }

  static bool is_measurable(const Candidate& candidate) {
    return candidate.row.fits && candidate.row.note.empty();
  }
  template <class Do>
  Status for_each_measurable(const Do& action) {
    for (Candidate& candidate : candidates_)
      if (is_measurable(candidate)) KVANT_RETURN_IF_ERROR(action(candidate));
    return {};
  }

  Status measure_quality() {
    const auto session =
        Session::open(options_.common, weight_mode(options_.weights), options_.quality.context);
    if (!session.ok()) return session.error();
    Engine& engine = session->engine();
    const auto text = options_.text_file.empty() ? Result<std::string>(held_out_text())
                                                 : read_text_file(options_.text_file);
    if (!text.ok()) return text.error();
    const auto tokens = tokenize_for_eval(engine.tokenizer(), *text);
    if (!tokens.ok()) return tokens.error();
    const auto exact = session->plan(Recipe{});
    if (!exact.ok()) return exact.error();
    const auto reference =
        make_engine_source("bf16", engine, session->backend(), *exact, options_.quality.step_tokens);
    std::vector<std::unique_ptr<LogitSource>> sources;
    std::vector<Candidate*> measured;
    KVANT_RETURN_IF_ERROR(for_each_measurable([&](Candidate& candidate) -> Status {
      const auto plan = session->plan(candidate.recipe);
      if (!plan.ok()) return plan.error();
      sources.push_back(make_engine_source(candidate.row.recipe, engine, session->backend(), *plan,
                                           options_.quality.step_tokens));
      measured.push_back(&candidate);
      return {};
    }));
    QualityOptions quality = options_.quality;
    quality.n_threads = options_.common.n_threads;
    constexpr int kDecoded = 4;
    const auto speed = measure_reading(engine, session->backend(), *exact, kDecoded);
    if (!speed.ok()) return speed.error();
    // evaluate_quality() decodes the second half of each chunk token by token.
    const int n_decoded = chunks_available(*tokens, quality) * quality.context / 2;
    const double each = n_decoded * (speed->prompt + speed->decode);
    say("kvant: measuring the quality of {} recipes takes about {}, and then their speed\n", sources.size(),
        readable_duration(each * static_cast<double>(sources.size() + 1)));
    Progress progress("quality",
                      (std::ssize(sources) + 1) * quality.context * chunks_available(*tokens, quality),
                      "tokens");
    const auto result = evaluate_quality(*tokens, engine.n_vocab(), *reference, sources, quality,
                                         [&](std::int64_t n) { progress.advance(n); });
    if (!result.ok()) return result.error();
    for (std::size_t i = 0; i < measured.size(); ++i) {
      measured[i]->row.kld = result->rows[i + 1].metrics.kld_mean;
      measured[i]->row.top1 = result->rows[i + 1].metrics.top1;
      measured[i]->row.measured = true;
    }
    return {};
  }

  Status measure_speed() {
    const auto session = Session::open(options_.common, WeightMode::as_stored, context_);
    if (!session.ok()) return session.error();
    BenchOptions bench;
    bench.prompt = 0;
    bench.decode = 16;
    bench.repeats = 3;
    // The generation must end at the end of the context.
    bench.depths = {std::max(0, context_ - bench.decode - 1)};
    std::vector<Candidate*> timed;
    KVANT_RETURN_IF_ERROR(for_each_measurable([&](Candidate& candidate) -> Status {
      timed.push_back(&candidate);
      return {};
    }));
    Progress progress("speed", std::ssize(timed) * bench.repeats, "runs");
    // Only one cache exists at a time, because several may not fit into memory together.
    for (Candidate* candidate : timed) {
      const auto plan = session->plan(candidate->recipe);
      if (!plan.ok()) return plan.error();
      std::vector<std::unique_ptr<Contender>> contender;
      contender.push_back(
          make_engine_contender(candidate->row.recipe, session->engine(), session->backend(), *plan));
      const auto rows = run_bench(contender, bench, [&](int n) { progress.advance(n); });
      if (!rows.ok()) return rows.error();
      candidate->row.decode_tps = rows->front().decode_tps;
    }
    return {};
  }

  const AdviseOptions& options_;
  std::vector<Candidate> candidates_;
  std::int64_t weights_ = 0, memory_ = 0;
  int context_ = 0;
};

void print(const Advice& advice, const Adviser& adviser, const AdviseOptions& options) {
  fmt::print(
      "Memory: {}, weights: {}, {} of {} tokens:\n", readable_bytes(static_cast<double>(adviser.memory())),
      readable_bytes(static_cast<double>(adviser.weights())),
      options.batch == 1 ? "one sequence" : fmt::format("{} sequences", options.batch), adviser.context());
  std::size_t width = 6;
  for (const AdviceRow& row : advice.rows) width = std::max(width, row.recipe.size());
  fmt::print("{:1} {:{}} {:>10} {:>9} {:>8} {:>9}\n", "", "recipe", width, "KV cache", "mean KLD", "top-1",
             "decode t/s");
  for (const AdviceRow& row : advice.rows) {
    const bool chosen = advice.recommends && &row == advice.rows.data();
    fmt::print("{:1} {:{}} {:>10} ", chosen ? "*" : "", row.recipe, width,
               readable_bytes(static_cast<double>(row.bytes)));
    if (row.measured) {
      fmt::print("{:9.2g} {:6.1f} % {:9.1f}{}{}\n", row.kld, 100 * row.top1, row.decode_tps,
                 row.caveat.empty() ? "" : "  ", row.caveat);
    } else {
      fmt::print("{}\n", row.fits ? row.note : "does not fit");
    }
  }
  if (advice.recommends) fmt::print("Recommended (*): {}\n", advice.why);
}

std::string to_json(const Advice& advice, const Adviser& adviser, const AdviseOptions& options) {
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "kvant.advise/1"},
               {"model", options.common.model},
               {"context", adviser.context()},
               {"batch", options.batch},
               {"memory_bytes", adviser.memory()},
               {"weight_bytes", adviser.weights()},
               {"recommended", advice.recommends ? Json(advice.rows.front().recipe) : Json(nullptr)},
               {"why", advice.why},
               {"results", Json::array()}};
  for (const AdviceRow& row : advice.rows) {
    Json item = {
        {"recipe", row.recipe}, {"asked", row.asked}, {"cache_bytes", row.bytes}, {"fits", row.fits}};
    item["kld_mean"] = row.measured ? Json(row.kld) : Json(nullptr);
    item["top1"] = row.measured ? Json(row.top1) : Json(nullptr);
    item["decode_tps"] = row.measured ? Json(row.decode_tps) : Json(nullptr);
    if (!row.note.empty()) item["note"] = row.note;
    if (!row.caveat.empty()) item["caveat"] = row.caveat;
    json["results"].push_back(std::move(item));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status run_advise(const AdviseOptions& options) {
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  Adviser adviser(options);
  const auto advice = adviser.run();
  if (!advice.ok()) return advice.error();
  print(*advice, adviser, options);
  if (!options.common.json.empty())
    KVANT_RETURN_IF_ERROR(write_whole_file(options.common.json, to_json(*advice, adviser, options)));
  // The exit code must tell a script that nothing was recommended.
  if (!advice->recommends) return error("{}", advice->why);
  return {};
}

}  // namespace

Command add_advise_command(CLI::App& program) {
  auto options = std::make_shared<AdviseOptions>();
  CLI::App* command = program.add_subcommand(
      "advise", "recommend a recipe for a model, a context length and an amount of memory");
  add_model_options(*command, options->common, /*many_recipes=*/true);
  set_default_recipes(*command, "all product recipes");
  add_device_option(*command, options->common);
  add_weights_option(*command, options->weights);
  command->add_option("-c,--ctx-size", options->context, "tokens per sequence (default: the trained context)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--memory", options->memory,
                      "memory for weights and KV cache, such as 8GiB (default: the available memory of the "
                      "machine, or of the GPU with --device cuda)");
  command->add_option("-b,--batch", options->batch, "number of sequences at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-f,--file,--text", options->text_file,
                      "text to measure quality on (default: a held-out text that ships with kvant)");
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return run_advise(*options);
          }};
}

}  // namespace kvant
