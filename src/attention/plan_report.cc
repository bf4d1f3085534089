#include "attention/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "format/page_metric.h"

namespace kvant {
namespace {

std::string joined(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

// Writes ascending numbers as ranges, for example "0-3,7".
std::string ranges(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? fmt::format("{}", numbers[i])
                                 : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return joined(parts, ",");
}

// Says how one (layer, KV head, side) is served: transforms, format, kernel, why no faster kernel, and bytes
// of a page.
using Treatment = std::tuple<std::string, std::string, std::string, std::string, std::size_t>;

Treatment treatment(const Plan& plan, const AttentionBackend& backend, int layer, int kv_head, Side side) {
  const SidePlan& side_plan = plan.head(layer, kv_head).side(side);
  const KernelChoice kernel = backend.kernel(plan, layer, kv_head, side);
  return {joined(side_plan.transform_names, "+"), side_plan.sealed->name(), kernel.name, kernel.fallback,
          side_plan.sealed->page_bytes(plan.geometry.dim(layer))};
}

// Groups the heads of a layer that are treated alike, and then the layers whose heads are grouped alike.
void add_rows(const Plan& plan, const AttentionBackend& backend, Side side, PlanReport& report) {
  std::map<std::pair<Treatment, std::vector<int>>, std::vector<int>> layers_of;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    std::map<Treatment, std::vector<int>> heads_of;
    for (int head = 0; head < plan.geometry.kv_heads(layer); ++head) {
      heads_of[treatment(plan, backend, layer, head, side)].push_back(head);
    }
    for (const auto& [what, heads] : heads_of) layers_of[{what, heads}].push_back(layer);
  }
  std::vector<std::pair<int, PlanRow>> found;
  for (const auto& [what, layers] : layers_of) {
    const auto& [transforms, format, kernel, fallback, page_bytes] = what.first;
    if (!fallback.empty())
      report.fallbacks.push_back(
          {fmt::format("{} of layers {}: {}", side_name(side), ranges(layers), format), fallback});
    found.push_back({layers.front(),
                     {side, ranges(layers), ranges(what.second), transforms, format, kernel, page_bytes}});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [first_layer, row] : found) report.rows.push_back(std::move(row));
}

// Lists where the plan's place had to change the recipe (place_on).
void add_changes_of_place(const Plan& plan, PlanReport& report) {
  const Recipe &asked = plan.asked, &served = plan.recipe;
  if (!asked.tail.empty() && asked.tail != served.tail)
    report.fallbacks.push_back(
        {fmt::format("unsealed and protected tokens: {} instead of {}", served.tail, asked.tail),
         "the device keeps them in no other format"});
  if (asked.products != served.products)
    report.fallbacks.push_back({fmt::format("products of {} tokens: real instead of integer",
                                            served.prompt == PromptAttention::flashq ? "decoded" : "all"),
                                "the device multiplies codes by q and weights in half precision"});
}

// Says what the plan does because a calibration is missing, and what a calibration would bring.
std::string missing_calibration(const Plan& plan) {
  if (plan.calibration != CalibrationState::missing) return "";
  const std::string asked = label(plan.asked);
  if (plan.asked.budget == 0) {
    return fmt::format(
        "used in place of {}: all errors of K have equal weight; `kvant calibrate --kv {}` with this model "
        "learns which ones matter",
        asked, asked);
  }
  const SidePlan& side = plan.heads.front().k;
  return fmt::format(
      "used in place of {}: every layer, head and side has {:.2f} bits per value; `kvant calibrate --kv {}` "
      "with this model allocates {} bits on average where they matter most",
      asked, side.sealed->bits(side.context.head_dim), asked, plan.asked.budget);
}

// Says which encoder encode=shaped has led to.
std::string encoder_of_keys(const Plan& plan) {
  if (plan.recipe.encode == Encode::plain) return "";
  const bool any = std::ranges::any_of(plan.heads, [](const HeadPlan& head) {
    return head.k.sealed->shapes_errors() && !head.k.context.constants.find(kPageMetric).empty();
  });
  if (!any) return "";
  return plan.recipe.encode == Encode::sampled ? "weighted by the queries of a short text"
                                               : "weighted by the queries of the calibration";
}

}  // namespace

PlanReport report_plan(const Plan& plan, const AttentionBackend& backend) {
  PlanReport report;
  report.asked = label(plan.asked);
  report.summary = to_string(plan.recipe);
  report.tail = plan.tail->name();
  report.sink = plan.recipe.sink;
  report.window = plan.recipe.window;
  report.prefill = plan.recipe.prefill;
  report.calibration = plan.calibration;
  report.calibration_note = missing_calibration(plan);
  report.encoder = encoder_of_keys(plan);
  for (const Side side : kSides) add_rows(plan, backend, side, report);
  add_changes_of_place(plan, report);
  return report;
}

std::string plan_table(const PlanReport& report) {
  const std::string prompt =
      report.prefill == kPrefillAll ? "whole" : fmt::format("{} tokens", report.prefill);
  std::string text = fmt::format("plan: {}\n", report.summary);
  if (report.rows.empty()) return text;
  text += fmt::format("  tail {}, sink {} tokens, window {} tokens, prompt blocks: {}\n", report.tail,
                      report.sink, report.window, prompt);
  if (report.calibration != CalibrationState::not_needed) {
    text += fmt::format("  {}{}{}\n", calibration_state_name(report.calibration),
                        report.calibration_note.empty() ? "" : ": ", report.calibration_note);
  }
  if (!report.encoder.empty()) text += fmt::format("  errors of K: {}\n", report.encoder);
  std::size_t widths[] = {6, 8, 10, 6};
  for (const PlanRow& row : report.rows) {
    widths[0] = std::max(widths[0], row.layers.size());
    widths[1] = std::max(widths[1], row.kv_heads.size());
    widths[2] = std::max(widths[2], row.transforms.size());
    widths[3] = std::max(widths[3], row.format.size());
  }
  text +=
      fmt::format("  {:4}  {:{}}  {:{}}  {:{}}  {:{}}  {:>10}  {}\n", "side", "layers", widths[0], "KV heads",
                  widths[1], "transforms", widths[2], "format", widths[3], "bytes/page", "kernel");
  for (const PlanRow& row : report.rows) {
    text += fmt::format("  {:4}  {:{}}  {:{}}  {:{}}  {:{}}  {:>10}  {}\n", side_name(row.side), row.layers,
                        widths[0], row.kv_heads, widths[1], row.transforms.empty() ? "-" : row.transforms,
                        widths[2], row.format, widths[3], row.page_bytes, row.kernel);
  }
  for (const Fallback& fallback : report.fallbacks) {
    text += fmt::format("  fallback: {}: {}\n", fallback.what, fallback.reason);
  }
  return text;
}

}  // namespace kvant
