// kvant info: what a model's KV cache takes, and what fits.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/progress.h"
#include "calibrate/needs.h"
#include "cli/command.h"
#include "cli/session.h"
#include "eval/cache_size.h"
#include "eval/report_json.h"

namespace kvant {
namespace {

struct InfoOptions {
  ModelOptions common;
  int context = 0;
  int batch = 1;
};

struct Info {
  int context = 0;
  int batch = 1;
  std::int64_t available = 0;  // bytes beyond the weights
  PlanReport report;
  std::vector<std::int64_t> layers;
  std::int64_t cache = 0;  // bytes of one sequence at `context`
  CacheBits bits;
  ConstantSize constants;
  std::int64_t bf16 = 0;
  double token = 0;    // bytes of one more token, once sealed
  int max_tokens = 0;  // of each of `batch` sequences
};

// The longest sequences of which `batch` fit into `bytes`.
int max_tokens(const Plan& plan, int batch, std::int64_t bytes) {
  int fits = 0;
  for (int step = 1 << 30; step > 0; step /= 2) {
    const std::int64_t tokens = std::int64_t{fits} + step;
    if (tokens > INT32_MAX - kPageTokens) continue;
    if (largest_cache_bytes(plan, static_cast<int>(tokens)) <= bytes / batch) fits = static_cast<int>(tokens);
  }
  return fits;
}

Info collect(const Session& session, const PreviewPlan& preview, const InfoOptions& options) {
  const Geometry& g = session.engine().geometry();
  const Plan& plan = *preview.plan;
  Info info;
  info.report = session.report(preview);
  info.context = options.context > 0 ? options.context : std::max(g.trained_context, kPageTokens);
  info.batch = options.batch;
  info.available = std::max<std::int64_t>(available_memory_bytes(), 0);
  info.layers = cache_bytes_by_layer(plan, info.context);
  info.cache = predicted_cache_bytes(plan, info.context);
  info.bits = mean_bits(plan, info.context);
  info.constants = constant_size(plan, info.context);
  info.bf16 = bf16_bytes(g, info.context);
  for (const HeadPlan& head : plan.heads) {
    for (const Side side : kSides) {
      info.token += static_cast<double>(head.side(side).sealed->page_bytes(g.head_dim)) / kPageTokens;
    }
  }
  info.max_tokens = max_tokens(plan, options.batch, info.available);
  return info;
}

// "layers 0-29: 1.2 MiB each", for runs of equal layers.
void print_layers(const std::vector<std::int64_t>& layers) {
  for (std::size_t first = 0; first < layers.size();) {
    std::size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[first]) ++last;
    const std::string range =
        first == last ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, last);
    fmt::print("  {:<14} {} each\n", range, readable_bytes(static_cast<double>(layers[first])));
    first = last + 1;
  }
}

void print(const Session& session, const Plan& plan, const Info& info) {
  const Geometry& g = session.engine().geometry();
  fmt::print("model: {}, {} of weights\n", session.engine().description(),
             readable_bytes(static_cast<double>(session.engine().weight_bytes())));
  fmt::print("  {} layers, {} query heads, {} KV heads of {} channels, trained context {} tokens\n",
             g.n_layers, g.n_heads, g.n_kv_heads, g.head_dim, g.trained_context);
  fmt::print("recipe: {}\n{}", label(plan.recipe), plan_table(info.report));
  fmt::print("KV cache at {} tokens: {} for a sequence (bf16: {})\n", info.context,
             readable_bytes(static_cast<double>(info.cache)), readable_bytes(static_cast<double>(info.bf16)));
  fmt::print("  bits per element, on average over the positions of a page: {:.2f}; of sealed pages: {}\n",
             info.bits.all, std::isfinite(info.bits.sealed) ? fmt::format("{:.2f}", info.bits.sealed) : "-");
  fmt::print(
      "  model constants, for all sequences: {}{}\n",
      readable_bytes(static_cast<double>(info.constants.bytes)),
      info.constants.bytes == 0 ? "" : fmt::format(" ({:.2f} bits per element of one)", info.constants.bits));
  print_layers(info.layers);
  fmt::print("  each further token: {:.0f} bytes once sealed\n", info.token);
  if (info.batch > 1) {
    fmt::print("  {} sequences: {}\n", info.batch,
               readable_bytes(static_cast<double>(info.cache) * info.batch));
  }
  fmt::print("memory: {} available, enough for {} of {} tokens\n",
             readable_bytes(static_cast<double>(info.available)),
             info.batch == 1 ? "a sequence" : fmt::format("{} sequences", info.batch), info.max_tokens);
}

std::string to_json_text(const Session& session, const Plan& plan, const Info& info,
                         const std::string& model) {
  const Geometry& g = session.engine().geometry();
  const nlohmann::ordered_json json = {
      {"schema", "kvant.info/2"},
      {"model", model},
      {"description", session.engine().description()},
      {"layers", g.n_layers},
      {"heads", g.n_heads},
      {"kv_heads", g.n_kv_heads},
      {"head_dim", g.head_dim},
      {"trained_context", g.trained_context},
      {"weight_bytes", session.engine().weight_bytes()},
      {"recipe", label(plan.recipe)},
      {"context", info.context},
      {"batch", info.batch},
      {"bytes_per_token", info.token},
      {"cache_bytes", info.cache},
      {"cache_bytes_bf16", info.bf16},
      {"cache_bytes_by_layer", info.layers},
      {"bits_sealed", std::isfinite(info.bits.sealed) ? nlohmann::ordered_json(info.bits.sealed)
                                                      : nlohmann::ordered_json(nullptr)},
      {"bits_all", info.bits.all},
      {"constant_bytes", info.constants.bytes},
      {"constant_bits", info.constants.bits},
      {"available_bytes", info.available},
      {"max_tokens", info.max_tokens},
      {"plan", plan_to_json(info.report)}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status info(const InfoOptions& options) {
  const auto recipe = one_recipe(options.common);
  if (!recipe.ok()) return recipe.error();
  if (!options.common.json.empty()) KVANT_RETURN_IF_ERROR(check_writable(options.common.json));
  ModelOptions quiet = options.common;
  quiet.verbose = false;  // the plan is printed anyway
  const auto session = Session::open(quiet, WeightMode::as_stored, options.context);
  if (!session.ok()) return session.error();
  const Geometry& geometry = session->engine().geometry();
  const auto known = session->known_constants(*recipe);
  if (!known.ok()) return known.error();
  const auto preview = session->preview(*recipe, *known);
  if (!preview.ok()) return preview.error();
  const Plan& plan = *preview->plan;
  const Info found = collect(*session, *preview, options);
  warn_beyond_training(geometry, found.context);
  print(*session, plan, found);
  if (options.common.json.empty()) return {};
  return write_whole_file(options.common.json, to_json_text(*session, plan, found, options.common.model));
}

}  // namespace

Command add_info_command(CLI::App& program) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command =
      program.add_subcommand("info", "what a model's KV cache takes, and what fits into memory");
  add_model_options(*command, options->common, /*many_recipes=*/false);
  command
      ->add_option("-c,--ctx-size", options->context, "tokens of a sequence (default: the trained context)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("-b,--batch", options->batch, "sequences at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return {command, [options] {
            const Status chosen = choose_model(options->common);
            return chosen.ok() ? info(*options) : chosen;
          }};
}

}  // namespace kvant
