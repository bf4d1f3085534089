#include "eval/layer_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}
double skip_rate(const SkipCount& count) {
  return share(static_cast<double>(count.skipped), static_cast<double>(count.seen));
}
double skipped_mass(const SkipCount& count) {
  return share(count.mass, static_cast<double>(count.queries));
}
double unsealed_mass(const MassCoverage& coverage) {
  return share(coverage.unsealed, static_cast<double>(coverage.rows));
}
double protected_mass(const MassCoverage& coverage) {
  return share(coverage.protected_mass, static_cast<double>(coverage.rows));
}

template <class Sums>
Sums sum_of(const std::vector<Sums>& layers) {
  Sums sum;
  for (const Sums& layer : layers) sum.add(layer);
  return sum;
}

Json layer_to_json(const LayerEffects& effects, int layer) {
  const OutputError error = effects.of_layer(layer);
  Json json = {{"mse", error.mse()}, {"relative", error.relative()}};
  if (!effects.skips.empty()) {
    json["skip_rate"] = skip_rate(effects.skips[layer]);
    json["skipped_mass"] = skipped_mass(effects.skips[layer]);
  }
  if (!effects.coverage.empty()) {
    json["mass_unsealed"] = unsealed_mass(effects.coverage[layer]);
    json["mass_protected"] = protected_mass(effects.coverage[layer]);
  }
  json["heads"] = Json::array();
  for (int head = 0; head < effects.n_heads; ++head) {
    const OutputError& of_head = effects.errors[layer * effects.n_heads + head];
    json["heads"].push_back({{"mse", of_head.mse()}, {"relative", of_head.relative()}});
  }
  return json;
}

// Returns two figures of one layer under a recipe. Layer -1 stands for all layers.
using Figures = std::function<std::pair<std::string, std::string>(const LayerEffects&, int layer)>;

std::pair<std::string, std::string> errors_of(const LayerEffects& effects, int layer) {
  const OutputError error = layer < 0 ? effects.total() : effects.of_layer(layer);
  return {fmt::format("{:.3e}", error.mse()), fmt::format("{:.5f}", error.relative())};
}
std::pair<std::string, std::string> skips_of(const LayerEffects& effects, int layer) {
  const SkipCount count = layer < 0 ? sum_of(effects.skips) : effects.skips[layer];
  return {fmt::format("{:.2f}", 100 * skip_rate(count)), fmt::format("{:.2e}", skipped_mass(count))};
}
std::pair<std::string, std::string> coverage_of(const LayerEffects& effects, int layer) {
  const MassCoverage sum = layer < 0 ? sum_of(effects.coverage) : effects.coverage[layer];
  return {fmt::format("{:.2f}", 100 * unsealed_mass(sum)), fmt::format("{:.2f}", 100 * protected_mass(sum))};
}

// Formats the rows of `result` for which `has` returns true, with the numbers of the legend. Returns an empty
// string if there are no such rows.
std::string table(const LayerResult& result, const std::string& title, const char* first, const char* second,
                  const std::function<bool(const LayerEffects&)>& has, const Figures& figures) {
  constexpr int kWidth = 10;
  std::string head = fmt::format("{:5}", "layer"), lines;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    if (has(result.rows[i].effects))
      head += fmt::format("  {:>{}} {:>{}}", fmt::format("[{}] {}", i + 1, first), kWidth, second, kWidth);
  }
  if (head.size() == 5) return "";
  const int n_layers = result.rows.front().effects.n_layers;
  for (int line = 0; line <= n_layers; ++line) {
    const int layer = line < n_layers ? line : -1;
    lines += fmt::format("{:5}", layer < 0 ? "all" : std::to_string(layer));
    for (const LayerRow& row : result.rows) {
      if (!has(row.effects)) continue;
      const auto [a, b] = figures(row.effects, layer);
      lines += fmt::format("  {:>{}} {:>{}}", a, kWidth, b, kWidth);
    }
    lines += "\n";
  }
  return fmt::format("\n{}\n{}\n{}", title, head, lines);
}

}  // namespace

nlohmann::ordered_json layers_to_json(const LayerResult& result, const std::string& model) {
  Json json = {{"schema", "kvant.layers/1"},    {"model", model},
               {"context", result.context},     {"chunks", result.chunks},
               {"reference", result.reference}, {"results", Json::array()}};
  for (const LayerRow& row : result.rows) {
    const OutputError total = row.effects.total();
    Json entry = {{"recipe", row.name}, {"mse", total.mse()}, {"relative", total.relative()}};
    if (!row.label.empty()) entry["label"] = row.label;
    entry["layers"] = Json::array();
    for (int layer = 0; layer < row.effects.n_layers; ++layer)
      entry["layers"].push_back(layer_to_json(row.effects, layer));
    json["results"].push_back(std::move(entry));
  }
  return json;
}

std::string layers_table(const LayerResult& result) {
  std::string text = fmt::format("{} chunks of {} tokens; queries of the second half; activations of {}\n",
                                 result.chunks, result.context, result.reference);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const LayerRow& row = result.rows[i];
    text += fmt::format("[{}] {}{}\n", i + 1, row.label.empty() ? "" : row.label + ": ", row.name);
  }
  text += table(
      result, "attention output: mean squared error, relative RMS error", "MSE", "relative",
      [](const LayerEffects&) { return true; }, errors_of);
  text += table(
      result, "V not read: % of (query, token) pairs, softmax weight lost per query", "skip %", "mass",
      [](const LayerEffects& e) { return !e.skips.empty(); }, skips_of);
  text += table(
      result, "attention mass on unquantized tokens: % on tokens not sealed yet, % on protected tokens",
      "window", "protected", [](const LayerEffects& e) { return !e.coverage.empty(); }, coverage_of);
  return text;
}

}  // namespace kvant
