#include "task/eval_rows.h"

#include <filesystem>

#include "calibrate/needs.h"
#include "eval/llama_reference.h"

namespace kvant {
namespace {

// The control row runs kControlStep tokens per step.
constexpr int kControlStep = 128;

Result<EvalRow> parse_row(const SuiteRow& row, int step_tokens) {
  if (names_llama(row.recipe)) {
    KVANT_RETURN_IF_ERROR(check_llama_name(row.recipe));
    return EvalRow{row.label, row.recipe, {}, step_tokens};
  }
  const auto recipe = parse_recipe(row.recipe);
  if (!recipe.ok()) return recipe.error();
  return EvalRow{row.label, label(*recipe), *recipe, step_tokens};
}

bool same_cache(const EvalRow& a, const EvalRow& b) {
  if (names_llama(a.name) || names_llama(b.name)) return a.name == b.name;
  return to_string(a.recipe) == to_string(b.recipe);
}

}  // namespace

Result<std::vector<EvalRow>> parse_eval_rows(const std::string& reference, const std::vector<SuiteRow>& rows,
                                             int step_tokens) {
  auto first = parse_row({"", reference}, step_tokens);
  if (!first.ok()) return first.error();
  std::vector<EvalRow> parsed = {std::move(first).value()};
  for (const SuiteRow& text : rows) {
    auto row = parse_row(text, step_tokens);
    if (!row.ok()) return row.error();
    if (!same_cache(*row, parsed.front())) parsed.push_back(std::move(row).value());
  }
  return parsed;
}

EvalRow control_row() {
  return {"", fmt::format("bf16 (steps of {})", kControlStep), parse_recipe("bf16").value(), kControlStep};
}

std::vector<EvalRow> calibrated_on(const std::vector<EvalRow>& rows, const std::vector<std::string>& files,
                                   const Geometry& geometry) {
  std::vector<EvalRow> expanded;
  for (const EvalRow& row : rows) {
    if (files.empty() || names_llama(row.name) || !needs_calibration(row.recipe, geometry)) {
      expanded.push_back(row);
      continue;
    }
    for (const std::string& file : files) {
      const std::string text = "on " + std::filesystem::path(file).stem().string();
      expanded.push_back(row);
      expanded.back().label = row.label.empty() ? text : row.label + ", " + text;
      expanded.back().calibration_text = file;
    }
  }
  return expanded;
}

}  // namespace kvant
