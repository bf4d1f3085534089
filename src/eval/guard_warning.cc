// Decides when the quality guard warns. There are two kinds of problems. Either the whole recipe is too
// coarse for the model, or the cache of some layers is misconfigured, for example by another model's
// codebook. A misconfigured layer has a far larger error than the other layers. With good recipes, the worst
// layer has at most 3.2 times the median error.
#include <algorithm>
#include <cmath>

#include "eval/quality_guard.h"

namespace kvant {
namespace {

// The limit is in nats, under the assumption that all layers have the median layer's error.
constexpr double kMaxDivergence = 1;
// A layer is misconfigured if its relative error exceeds both kMaxError and kOutOfLine times the median.
constexpr double kMaxError = 0.7;
constexpr double kOutOfLine = 4;
constexpr int kChecksOfAVerdict = 3;  // checks per layer
constexpr const char* kSafeFormat = "tok8g32s";

double median_error(const GuardReport& report) {
  std::vector<double> errors;
  for (const GuardedLayer& layer : report.layers)
    if (layer.checks > 0) errors.push_back(layer.error.relative());
  if (errors.empty()) return 0;
  const auto middle = errors.begin() + std::ssize(errors) / 2;
  std::nth_element(errors.begin(), middle, errors.end());
  return *middle;
}

// Returns the side whose rounding causes most of the layer's error.
const char* side_at_fault(const GuardedLayer& layer) {
  return layer.keys.difference > layer.error.difference / 2 ? "K" : "V";
}

std::string broken_layer(const GuardReport& report, int layer, const std::string& recipe) {
  const GuardedLayer& found = report.layers[layer];
  const std::string side = side_at_fault(found);
  return fmt::format(
      "the cache changes the attention of layer {} by {:.0f} %, {} more than {}, while the median layer has "
      "{:.1f} %: store it in more bits with --kv '{},{}@{}={}', or recalibrate the recipe for this model",
      layer, 100 * found.error.relative(), side, side == "K" ? "V" : "K", 100 * median_error(report), recipe,
      side == "K" ? "k" : "v", layer, kSafeFormat);
}

std::string coarse_recipe(const GuardReport& report, int worst, const std::string& recipe) {
  return fmt::format(
      "the cache changes attention by {:.0f} % on average over the layers, most in layer {} ({}), so "
      "completions are unreliable: use a recipe with more bits, and if {} needs calibration, recalibrate it "
      "for this model",
      100 * report.relative, worst, side_at_fault(report.layers[worst]), recipe);
}

}  // namespace

int worst_layer(const GuardReport& report, int least_checks) {
  int worst = -1;
  for (int i = 0; i < std::ssize(report.layers); ++i) {
    const GuardedLayer& layer = report.layers[i];
    if (layer.checks < least_checks) continue;
    if (worst < 0 || layer.error.relative() > report.layers[worst].error.relative()) worst = i;
  }
  return worst;
}

std::optional<std::string> guard_warning(const GuardReport& report, const std::string& recipe) {
  const int worst = worst_layer(report, kChecksOfAVerdict);
  if (worst < 0) return std::nullopt;
  const double error = report.layers[worst].error.relative(), median = median_error(report);
  if (kDivergenceOfSquaredError * median * median > kMaxDivergence &&
      report.checks >= kChecksOfAVerdict * std::ssize(report.layers))
    return coarse_recipe(report, worst, recipe);
  if (error > kMaxError && error > kOutOfLine * median) return broken_layer(report, worst, recipe);
  return std::nullopt;
}

}  // namespace kvant
