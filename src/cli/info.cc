// kvant info prints the size of a model's KV cache and the longest context that fits into memory.
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json_file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "eval/report_json.h"
#include "task/cache_info.h"

namespace kvant {
namespace {

struct InfoOptions {
  ModelOptions common;
  int context = 0;
  int batch = 1;
};

// Prints one line per run of layers with equal bytes: "layers 0-29: 1.2 MiB each".
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

// Returns "8 KV heads of 64 channels". If layers differ, the text lists each pair of numbers with the number
// of its layers.
std::string heads_text(const Geometry& g) {
  // The key holds the number of KV heads and of channels of a layer. The value is the number of such layers.
  std::map<std::pair<int, int>, int> layers_of;
  for (int layer = 0; layer < g.n_layers; ++layer) ++layers_of[{g.kv_heads(layer), g.dim(layer)}];
  std::vector<std::string> kinds;
  for (const auto& [heads, n_layers] : layers_of) {
    kinds.push_back(
        fmt::format("{} KV head{} of {} channels", heads.first, heads.first == 1 ? "" : "s", heads.second));
    if (layers_of.size() > 1) kinds.back() += fmt::format(" in {} layers", n_layers);
  }
  return fmt::format("{}", fmt::join(kinds, " and "));
}

void print(const Session& session, const CacheInfo& info) {
  const Geometry& g = session.engine().geometry();
  fmt::print("model: {}, {} of weights\n", session.engine().description(),
             readable_bytes(static_cast<double>(session.engine().weight_bytes())));
  if (const std::int64_t bytes = session.engine().host_weight_bytes(); bytes > 0)
    fmt::print("  {} of the weights stay in host memory, where {} reads them in every step\n",
               readable_bytes(static_cast<double>(bytes)), session.options().device);
  fmt::print("  {} layers{}, {} query heads, {}, trained context {} tokens\n", g.n_layers,
             g.is_recurrent() ? " with attention" : "", g.n_heads, heads_text(g), g.trained_context);
  if (g.is_recurrent()) {
    fmt::print("  {} more layers without attention, whose state takes {} per sequence of any length\n",
               g.n_recurrent_layers, readable_bytes(static_cast<double>(g.recurrent_bytes())));
  }
  std::vector<int> shared;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (g.is_shared(layer)) shared.push_back(layer);
  }
  if (!shared.empty())
    fmt::print("  later layers share the cache of {} {}\n", shared.size() == 1 ? "layer" : "layers",
               fmt::join(shared, " and "));
  fmt::print("recipe: {}\n{}", info.preview.plan->name, plan_table(info.report));
  fmt::print("KV cache at {} tokens: {} per sequence (bf16: {})\n", info.context,
             readable_bytes(static_cast<double>(info.cache)), readable_bytes(static_cast<double>(info.bf16)));
  fmt::print("  bits per value: {:.2f}, averaged over the fill of the newest page; of sealed pages: {}\n",
             info.bits.all, std::isfinite(info.bits.sealed) ? fmt::format("{:.2f}", info.bits.sealed) : "-");
  fmt::print("  model constants, shared by all sequences: {}{}\n",
             readable_bytes(static_cast<double>(info.constants.bytes)),
             info.constants.bytes == 0
                 ? ""
                 : fmt::format(" ({:.2f} bits per value of one sequence)", info.constants.bits));
  print_layers(info.layers);
  fmt::print("  each additional token: {:.0f} bytes once sealed{}\n", info.token,
             info.n_full_layers == 0
                 ? ""
                 : fmt::format("; {} layers with a sliding window no longer grow", info.n_full_layers));
  if (info.batch > 1) {
    fmt::print("  {} sequences: {}\n", info.batch,
               readable_bytes(static_cast<double>(info.cache) * info.batch));
  }
  const bool beyond = g.trained_context > 0 && info.max_tokens > g.trained_context;
  fmt::print("memory: {} available, enough for {} of {} tokens{}\n",
             readable_bytes(static_cast<double>(info.available)),
             info.batch == 1 ? "one sequence" : fmt::format("{} sequences", info.batch), info.max_tokens,
             beyond ? fmt::format("; the model was trained for {} tokens", g.trained_context) : "");
}

Status info(const InfoOptions& options) {
  const auto recipe = one_recipe(options.common);
  if (!recipe.ok()) return recipe.error();
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  ModelOptions quiet = options.common;
  // The command prints the plan itself, so the session must not.
  quiet.verbose = false;
  const auto session = Session::open(quiet, WeightMode::as_stored, options.context);
  if (!session.ok()) return session.error();
  const auto found = cache_info(*session, *recipe, options.context, options.batch);
  if (!found.ok()) return found.error();
  warn_beyond_training(session->engine().geometry(), found->context);
  print(*session, *found);
  if (options.common.json.empty()) return {};
  return write_whole_file(options.common.json,
                          json_text(info_to_json(*session, *found, options.common.model)));
}

}  // namespace

Command add_info_command(CLI::App& program) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command = program.add_subcommand(
      "info", "print the size of a model's KV cache and the longest context that fits into memory");
  add_model_options(*command, options->common, /*many_recipes=*/false);
  add_device_option(*command, options->common);
  command->add_option("-c,--ctx-size", options->context, "tokens per sequence (default: the trained context)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("-b,--batch", options->batch, "number of sequences at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return info(*options);
          }};
}

}  // namespace kvant
