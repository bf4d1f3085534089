// kvant report measures the quality, size and speed of recipes and draws them on one HTML page.
#include <chrono>
#include <ctime>

#include "base/json_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/shell_word.h"
#include "eval/cache_size.h"
#include "eval/greedy/prompts.h"
#include "eval/llama_reference.h"
#include "eval/report_json.h"
#include "model/tokenizer.h"
#include "report/report_document.h"
#include "report/report_page.h"
#include "task/eval_stages.h"

namespace kvant {
namespace {

// If no file of prompts is given, this many prompts are taken from the text.
constexpr std::size_t kPrompts = 6;
constexpr std::size_t kPromptTokens =
    // A prompt must be much longer than a window of 128 tokens, which would hide the formats.
    512;
constexpr int kLayerChunks = 1;
// Some figures are also measured at contexts of a half and a quarter of -c.
constexpr int kShortestPart = 4;
constexpr int kFirstMemoryContext = 512;

struct ReportOptions {
  ModelOptions common;
  // Names the type of the weights while quality is judged.
  std::string weights = kUsualWeights;
  std::string file, output, prompts;
  int context = 2048;
  int chunks = 4;
  int generated_tokens = 64;
};

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[16];
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

class Report {
 public:
  Report(const ReportOptions& options, std::vector<EvalRow> rows)
      : options_(options), rows_(std::move(rows)) {}

  Status measure(const std::string& text) {
    figures_.model = options_.common.model;
    figures_.text = options_.file;
    figures_.date = today();
    figures_.n_threads = options_.common.n_threads;
    figures_.speed_options = {.depths = {options_.context}, .prompt = 256, .decode = 16, .repeats = 3};
    KVANT_RETURN_IF_ERROR(measure_quality(text));
    KVANT_RETURN_IF_ERROR(measure_speed());
    name_commands();
    return {};
  }
  const ReportFigures& figures() const { return figures_; }

 private:
  bool on_device() const { return options_.common.device != SessionOptions{}.device; }
  bool host_attends() const { return !on_device() || !options_.common.kv_offload; }
  Status measure_quality(const std::string& text);
  Status measure_layers(const EvalStage& stage, const EvalText& text);
  Status measure_limits(const EvalStage& stage, const std::string& text);
  Status measure_greedy(const EvalStage& stage, const EvalText& text);
  Status measure_speed();
  Status add_memory(const Session& session);
  Result<std::vector<std::vector<std::int32_t>>> prompts(const Tokenizer& tokenizer,
                                                         const EvalText& text) const;
  void name_commands();

  const ReportOptions& options_;
  // The first row is the reference of the comparison.
  std::vector<EvalRow> rows_;
  ReportFigures figures_;
};

Status Report::measure_quality(const std::string& text) {
  const auto session = Session::open(options_.common, weight_mode(options_.weights), options_.context);
  if (!session.ok()) return session.error();
  figures_.description = session->engine().description();
  const auto tokens = tokenize_for_eval(session->engine().tokenizer(), text);
  if (!tokens.ok()) return tokens.error();
  const EvalStage stage{*session, options_.common.model, rows_, options_.common.n_threads};
  KVANT_RETURN_IF_ERROR(add_memory(*session));
  auto quality = run_quality(
      stage, *tokens,
      {.context = options_.context, .chunks = options_.chunks, .n_threads = options_.common.n_threads});
  if (!quality.ok()) return quality.error();
  figures_.quality = std::move(quality).value();
  KVANT_RETURN_IF_ERROR(measure_layers(stage, *tokens));
  KVANT_RETURN_IF_ERROR(measure_limits(stage, text));
  return measure_greedy(stage, *tokens);
}

// If a recipe skips V, shorter contexts are measured too, because the skipped share depends on the context.
Status Report::measure_layers(const EvalStage& stage, const EvalText& text) {
  EvalStage own{stage.session, stage.model, {}, stage.n_threads};
  bool skips = false;
  for (const EvalRow& row : rows_) {
    if (names_llama(row.name)) continue;
    own.rows.push_back(row);
    skips = skips || (row.recipe.skip > 0 && host_attends());
  }
  std::vector<int> contexts = {options_.context};
  if (skips) contexts = {options_.context / kShortestPart, options_.context / 2, options_.context};
  for (const int context : contexts) {
    const QualityOptions quality{.context = context - context % 2, .chunks = kLayerChunks};
    auto layers = run_layers(own, text, quality);
    if (!layers.ok()) return layers.error();
    figures_.layers.push_back(std::move(layers).value());
  }
  return {};
}

Result<std::vector<std::vector<std::int32_t>>> Report::prompts(const Tokenizer& tokenizer,
                                                               const EvalText& text) const {
  std::vector<std::vector<std::int32_t>> encoded;
  if (options_.prompts.empty()) {
    const std::size_t count = std::min(kPrompts, text.tokens.size()), stride = text.tokens.size() / count;
    const std::size_t length = std::min(stride, kPromptTokens);
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = text.tokens.begin() + static_cast<std::ptrdiff_t>(i * stride);
      encoded.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
    }
    return encoded;
  }
  const auto file = read_text_file(options_.prompts);
  if (!file.ok()) return file.error();
  const auto lines = parse_prompts(*file);
  if (!lines.ok()) return lines.error();
  return encode_prompts(tokenizer, *lines);
}

Status Report::measure_limits(const EvalStage& stage, const std::string& text) {
  LimitOptions limits;
  for (const int part : {kShortestPart, 2, 1}) limits.contexts.push_back(options_.context / part);
  auto found = run_limits(stage, text, limits);
  if (!found.ok()) return found.error();
  figures_.limits = std::move(found).value();
  return {};
}

Status Report::measure_greedy(const EvalStage& stage, const EvalText& text) {
  const auto encoded = prompts(stage.session.engine().tokenizer(), text);
  if (!encoded.ok()) return encoded.error();
  auto greedy = run_greedy(stage, *encoded, options_.generated_tokens);
  if (!greedy.ok()) return greedy.error();
  figures_.greedy = std::move(greedy).value();
  return {};
}

Status Report::add_memory(const Session& session) {
  const int longest = std::max(session.engine().geometry().trained_context, options_.context);
  for (std::int64_t tokens = kFirstMemoryContext; tokens <= longest; tokens *= 2)
    figures_.memory_contexts.push_back(static_cast<int>(tokens));
  for (const EvalRow& row : rows_) {
    if (names_llama(row.name)) continue;
    const auto plan = session.plan(row.recipe);
    if (!plan.ok()) return plan.error();
    MemoryRow memory{(*plan)->name, {}};
    for (const int tokens : figures_.memory_contexts)
      memory.bytes.push_back(mean_cache_bytes(**plan, tokens));
    figures_.memory.push_back(std::move(memory));
  }
  return {};
}

// The weights have the type of the file, as in `kvant run`, whose speed the page shows.
Status Report::measure_speed() {
  const BenchOptions& speed = figures_.speed_options;
  const int max_new = std::max(speed.prompt, speed.decode + 1);
  const auto session = Session::open(options_.common, WeightMode::as_stored, options_.context + max_new);
  if (!session.ok()) return session.error();
  std::shared_ptr<LlamaModelFile> llama;
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const EvalRow& row : rows_) {
    if (!names_llama(row.name)) {
      const auto plan = session->plan(row.recipe);
      if (!plan.ok()) return plan.error();
      contenders.push_back(
          make_engine_contender((*plan)->name, session->engine(), session->backend(), *plan));
      continue;
    }
    if (llama == nullptr) {
      auto opened = open_llama_model(options_.common.model, session->engine().geometry());
      if (!opened.ok()) return opened.error();
      llama = std::move(opened).value();
    }
    auto made = make_llama_contender(row.name, llama, options_.context, max_new, options_.common.n_threads);
    if (!made.ok()) return made.error();
    contenders.push_back(std::move(made).value());
  }
  Progress progress("timing", std::ssize(contenders) * speed.repeats, "runs");
  auto rows = run_bench(contenders, speed, [&](int n) { progress.advance(n); });
  if (!rows.ok()) return rows.error();
  figures_.speed = std::move(rows).value();
  return {};
}

// Fills in the command lines. Each of them measures one part of the page's figures.
void Report::name_commands() {
  std::string kv;
  for (std::size_t i = 1; i < rows_.size(); ++i) kv += " --kv " + shell_word(rows_[i].name);
  const std::string model = " -m " + shell_word(options_.common.model);
  std::string machine;
  if (on_device()) machine += " --device " + options_.common.device;
  if (on_device() && host_attends()) machine += " --no-kv-offload";
  if (host_attends()) machine += " --backend " + options_.common.backend;
  const std::string common = fmt::format("{} -f {}{}{} -t {}", model, shell_word(options_.file), kv, machine,
                                         options_.common.n_threads);
  const std::string weights = options_.weights == kUsualWeights ? "" : " --weights " + options_.weights;
  const std::string size = fmt::format(" -c {}{} --chunks ", options_.context, weights);
  const std::string prompts = options_.prompts.empty() ? "" : " --prompts " + shell_word(options_.prompts);
  const std::string generation_option = fmt::format(" -n {}", options_.generated_tokens);
  ReportCommands& commands = figures_.commands;
  commands.report = fmt::format("kvant report{}{}{}{}{} -o {}", common, size, options_.chunks, prompts,
                                generation_option, shell_word(options_.output));
  commands.quality = fmt::format("kvant eval{}{}{}", common, size, options_.chunks);
  commands.layers = fmt::format("kvant eval --layers{}{}{}", common, size, kLayerChunks);
  commands.limits = "part of kvant report: documents of 1/4, 1/2 and all of -c tokens";
  commands.greedy = options_.prompts.empty()
                        ? fmt::format("part of kvant report: continues {} pieces of the text", kPrompts)
                        : fmt::format("kvant eval --greedy{} -f {}{}{}{}{}", model,
                                      shell_word(options_.prompts), kv, machine, weights, generation_option);
  const BenchOptions& speed = figures_.speed_options;
  commands.speed =
      fmt::format("kvant bench{} --kv bf16{} -d {} -p {} -n {} -r {}{} -t {}", model, kv, options_.context,
                  speed.prompt, speed.decode, speed.repeats, machine, options_.common.n_threads);
}

Status report(const ReportOptions& options) {
  std::vector<SuiteRow> names;
  for (const std::string& name : row_names(options.common)) names.push_back({"", name});
  const auto rows = parse_eval_rows("bf16", names, QualityOptions{}.step_tokens);
  if (!rows.ok()) return rows.error();
  for (const EvalRow& row : *rows)
    if (names_llama(row.name)) KVANT_RETURN_IF_ERROR(check_on_cpu(options.common, row.name));
  if (options.context % 2 != 0) return error("the context of {} tokens must be even", options.context);
  const auto text = read_text_file(options.file);
  if (!text.ok()) return text.error();
  KVANT_RETURN_IF_ERROR(check_writable(options.output));
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  Report made(options, *rows);
  KVANT_RETURN_IF_ERROR(made.measure(*text));
  const nlohmann::ordered_json document = report_to_json(made.figures());
  if (!options.common.json.empty())
    KVANT_RETURN_IF_ERROR(write_whole_file(options.common.json, json_text(document)));
  // The page embeds the JSON without indentation, because no person reads JSON in a page.
  const std::string page = report_page(document.dump());
  KVANT_RETURN_IF_ERROR(write_whole_file(options.output, page));
  fmt::print("{}: {} caches, {}\n", options.output, rows->size(),
             readable_bytes(static_cast<double>(page.size())));
  return {};
}

}  // namespace

Command add_report_command(CLI::App& program) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = program.add_subcommand(
      "report", "measure the quality, size and speed of recipes, and write one HTML page");
  add_model_options(*command, options->common, /*many_recipes=*/true);
  add_device_option(*command, options->common);
  add_weights_option(*command, options->weights);
  command->add_option("-f,--file", options->file, "text to measure quality on")->required();
  command->add_option("-o,--output", options->output, "HTML page to write")->required();
  command
      ->add_option("-c,--ctx-size", options->context,
                   "tokens per chunk, an even number, of which the second half is scored")
      ->check(CLI::Range(kShortestPart * kFewestChunkTokens, 1 << 24))
      ->capture_default_str();
  command->add_option("--chunks", options->chunks, "maximum number of chunks; 0: the whole text")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command->add_option("--prompts", options->prompts,
                      "prompts for greedy generation, one per line, or JSON with \"prompt\" or \"question\" "
                      "(default: pieces of the text)");
  command
      ->add_option("-n,--n-predict", options->generated_tokens,
                   "maximum number of tokens to generate per prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return report(*options);
          }};
}

}  // namespace kvant
