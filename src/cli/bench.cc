// kvant bench measures prefill and decode speed at several depths, next to llama.cpp's speed.
#include <algorithm>
#include <cstdio>

#include "base/json_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "bench/engine_bench.h"
#include "cli/command.h"
#include "cli/guard_option.h"
#include "cli/model_options.h"
#include "eval/cache_size.h"
#include "eval/llama_reference.h"
#include "eval/quality_eval.h"
#include "task/session.h"

namespace kvant {
namespace {

// llama.cpp's rows use flash attention, which a quantized V cache requires. The "-plain" rows run without
// flash attention, which may be faster on CPUs.
constexpr const char* kRivals[] = {"llama.cpp:f16",  "llama.cpp:f16-plain",      "llama.cpp:q8_0",
                                   "llama.cpp:q4_0", "llama.cpp:q8_0/f16-plain", "llama.cpp:q4_0/f16-plain"};

struct BenchCommandOptions {
  ModelOptions common;
  std::string against, guard, file;
  BenchOptions bench;
  int prompt_step = ContenderOptions().prompt_step;
};

std::vector<std::string> contender_names(const BenchCommandOptions& options) {
  std::vector<std::string> names = row_names(options.common);
  if (options.against.empty()) return names;
  for (const std::string rival : kRivals) {
    if (options.common.device != "cpu" && rival.ends_with("-plain")) continue;
    if (std::find(names.begin(), names.end(), rival) == names.end()) names.push_back(rival);
  }
  return names;
}

class Contenders {
 public:
  Contenders(const Session& session, const BenchCommandOptions& options, BenchText text)
      : session_(session), options_(options) {
    contender_.text = std::move(text);
    contender_.parallel = options.bench.parallel;
    contender_.prompt_step = options.prompt_step;
    contender_.kv_offload = options.common.kv_offload;
  }

  // Makes the contender of one row; make_engine_contender() explains guard_every.
  Result<std::unique_ptr<Contender>> make(const std::string& name, int guard_every) {
    const BenchOptions& bench = options_.bench;
    const int max_new = std::max(bench.prompt, bench.decode + 1);
    if (names_llama(name)) {
      KVANT_RETURN_IF_ERROR(check_llama_name(name));
      if (llama_ == nullptr) {
        auto opened =
            open_llama_model(options_.common.model, session_.engine().geometry(), session_.device());
        if (!opened.ok()) return opened.error();
        llama_ = std::move(opened).value();
      }
      return make_llama_contender(name, llama_, bench.depths.back(), max_new, options_.common.n_threads,
                                  contender_);
    }
    const auto recipe = parse_recipe(name);
    if (!recipe.ok()) return recipe.error();
    const auto plan = session_.plan(*recipe);
    if (!plan.ok()) return plan.error();
    const int n_tokens = bench.depths.back() + max_new;
    KVANT_RETURN_IF_ERROR(session_.check_cache_memory(
        fmt::format("a KV cache of {} tokens", std::int64_t{n_tokens} * bench.parallel),
        cache_bytes(*plan, n_tokens)));
    return make_engine_contender((*plan)->name + (guard_every > 0 ? " (guarded)" : ""), session_.engine(),
                                 session_.backend(), *plan, contender_, guard_every);
  }

 private:
  // The benchmark runs copies of the sequences, and each copy has its own open page.
  std::int64_t cache_bytes(const PlacedPlan& plan, int n_tokens) const {
    const BenchOptions& bench = options_.bench;
    const bool reads = bench.prompt > 0 || contender_.text != nullptr;
    const Batch batch{bench.parallel, reads ? contender_.prompt_step : 1};
    std::int64_t copied = 0;
    for (const int depth : bench.depths)
      copied = std::max(copied, largest_batch_bytes(plan, depth % kPageTokens, {bench.parallel}));
    return largest_batch_bytes(plan, n_tokens, batch) + copied;
  }

  const Session& session_;
  const BenchCommandOptions& options_;
  ContenderOptions contender_;
  std::shared_ptr<LlamaModelFile> llama_;
};

// Reads the text of --file; without --file the result has a null text.
Result<BenchText> text_of(const BenchCommandOptions& options, const Tokenizer& tokenizer) {
  if (options.file.empty()) return BenchText();
  const auto text = read_text_file(options.file);
  if (!text.ok()) return text.error();
  auto tokens = tokenize_for_eval(tokenizer, *text);
  if (!tokens.ok()) return tokens.error();
  const int needed = options.bench.depths.back() + std::max(options.bench.prompt, options.bench.decode + 1);
  if (std::ssize(tokens->tokens) < needed) {
    return error("'{}' has {} tokens, but this benchmark needs {}: give a longer text or a smaller --depth",
                 options.file, tokens->tokens.size(), needed);
  }
  return std::make_shared<const std::vector<std::int32_t>>(std::move(tokens->tokens));
}

Status bench(BenchCommandOptions options) {
  auto& depths = options.bench.depths;
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  const auto guard_every = parse_guard(options.guard);
  if (!guard_every.ok()) return guard_every.error();
  if (options.bench.prompt == 0 && options.bench.decode == 0)
    return error("nothing to measure: -p and -n are both 0; give at least one of them");
  if (*guard_every > 0 && options.bench.parallel > 1)
    return error("--guard supports one sequence only: leave out --guard or --parallel");
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  const auto session = Session::open(options.common, WeightMode::as_stored, depths.back() + 1);
  if (!session.ok()) return session.error();
  auto text = text_of(options, session->engine().tokenizer());
  if (!text.ok()) return text.error();
  options.bench.from_text = *text != nullptr;
  Contenders contenders(*session, options, std::move(text).value());
  std::vector<std::unique_ptr<Contender>> made;
  for (const std::string& name : contender_names(options)) {
    std::vector<int> guards = {0};
    if (*guard_every > 0 && !names_llama(name)) guards.push_back(*guard_every);
    for (const int every : guards) {
      auto contender = contenders.make(name, every);
      if (!contender.ok()) return contender.error();
      made.push_back(std::move(contender).value());
    }
  }
  Result<std::vector<BenchRow>> rows = error("not run");
  {
    const auto runs = static_cast<std::int64_t>(depths.size() * made.size()) * options.bench.repeats;
    Progress progress("benchmark", runs, "runs");
    rows = run_bench(made, options.bench, [&](int n) { progress.advance(n); });
  }
  if (!rows.ok()) return rows.error();
  fmt::print("{}", bench_table(*rows));
  fmt::print(
      "{} threads; medians of {} interleaved runs; prefill of {} tokens, decode of {} tokens, {}; caches "
      "filled {}; ratios: relative to the fastest llama.cpp row with at least as many bits, or to the first "
      "row if there is none\n",
      options.common.n_threads, options.bench.repeats, options.bench.prompt, options.bench.decode,
      options.bench.parallel == 1 ? "one sequence" : fmt::format("{} sequences", options.bench.parallel),
      options.bench.from_text ? "from the text" : "with synthetic values");
  if (options.common.json.empty()) return {};
  return write_whole_file(options.common.json, bench_to_json(*rows, options.bench, options.common.model,
                                                             options.common.n_threads));
}

// Refuses options of `command` itself if its subcommand runs, because the subcommand would silently ignore
// them.
Status check_no_options(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    return error(
        "{} comes before 'attention', which would ignore it: give it after 'attention' if kvant bench "
        "attention --help lists it",
        option->get_name());
  }
  return {};
}

}  // namespace

Command add_bench_command(CLI::App& program) {
  auto options = std::make_shared<BenchCommandOptions>();
  CLI::App* command = program.add_subcommand("bench", "measure prefill and decode speed");
  add_model_options(*command, options->common, /*many_recipes=*/true);
  add_device_option(*command, options->common);
  command
      ->add_option("-d,--depth", options->bench.depths,
                   "tokens in the cache before each timed run, such as 0,4096,16384")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command
      ->add_option("-p,--n-prompt", options->bench.prompt, "prompt tokens of a timed prefill; 0: no prefill")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("-n,--n-gen", options->bench.decode, "tokens of a timed decode; 0: no decode")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--parallel", options->bench.parallel,
                   "number of sequences to decode at the same time, each with --depth tokens in the cache")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  command
      ->add_option("--prompt-step", options->prompt_step, "maximum number of prompt tokens per prefill step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      ->add_option("-r,--repetitions", options->bench.repeats,
                   "number of runs, of which the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--against", options->against,
                   "also measure llama.cpp with f16, q8_0 and q4_0 caches, with and without flash attention")
      ->check(CLI::IsMember({"llama.cpp"}));
  command->add_option("-f,--file,--text", options->file,
                      "fill the caches from this text instead of with synthetic values; slower, but the "
                      "attention is realistic");
  add_guard_option(*command, options->guard);
  const Command attention = add_bench_attention_command(*command);
  return {command, [options, command, attention]() -> Status {
            if (attention.app->parsed()) {
              KVANT_RETURN_IF_ERROR(check_no_options(*command));
              return attention.run();
            }
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return bench(*options);
          }};
}

}  // namespace kvant
