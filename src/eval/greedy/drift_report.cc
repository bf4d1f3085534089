#include "eval/greedy/drift_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "eval/report_json.h"

namespace kvant {

nlohmann::ordered_json drift_to_json(const DriftResult& result, const std::string& model) {
  using Json = nlohmann::ordered_json;
  Json json = {
      {"schema", "kvant.drift/1"}, {"model", model},      {"generated_tokens", result.generated_tokens},
      {"prompts", result.prompts}, {"text", result.text}, {"ends", result.ends},
      {"results", Json::array()}};
  for (const DriftRow& row : result.rows) {
    Json entry = {{"recipe", row.name}};
    if (!row.label.empty()) entry["label"] = row.label;
    entry.update({{"kld_mean", row.all.kld_mean},
                  {"kld_lo", row.all.kld_lo},
                  {"kld_hi", row.all.kld_hi},
                  {"top1", row.all.top1},
                  {"blocks", Json::array()}});
    for (const DriftBlock& block : row.blocks) {
      entry["blocks"].push_back({{"first", block.first},
                                 {"count", block.count},
                                 {"kld_mean", block.kld},
                                 {"kld_lo", block.interval.lo},
                                 {"kld_hi", block.interval.hi},
                                 {"top1", block.top1}});
    }
    entry["plan"] = plan_to_json(row.plan);
    json["results"].push_back(std::move(entry));
  }
  return json;
}

std::string drift_table(const DriftResult& result) {
  std::size_t width = 6;
  const auto title = [](const DriftRow& row) {
    return row.label.empty() ? row.name : row.label + ": " + row.name;
  };
  for (const DriftRow& row : result.rows) width = std::max(width, title(row).size());
  std::string text = fmt::format("{:{}}", "recipe", width);
  for (const DriftBlock& block : result.rows.front().blocks)
    text += fmt::format("  {:>16}", fmt::format("{}-{}", block.first, block.first + block.count - 1));
  text += "\n";
  for (const DriftRow& row : result.rows) {
    text += fmt::format("{:{}}", title(row), width);
    for (const DriftBlock& block : row.blocks)
      text += fmt::format("  {:>9.2e} {:>6.2f}", block.kld, 100 * block.top1);
    text += "\n";
  }
  return text +
         fmt::format(
             "mean KLD and same top token in %, by position in the completion; {} prompts; reference: {}\n",
             result.prompts, result.rows.front().name);
}

}  // namespace kvant
