#include "eval/greedy/greedy_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "eval/report_json.h"

namespace kvant {

nlohmann::ordered_json greedy_to_json(const GreedyResult& result, const std::string& model) {
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "kvant.greedy/2"},
               {"model", model},
               {"generated_tokens", result.generated_tokens},
               {"text", result.text},
               {"lengths", result.lengths},
               {"results", Json::array()}};
  for (const GreedyRow& row : result.rows) {
    const GreedyFigures f = summarize(result, row);
    Json entry = {{"recipe", row.name}};
    if (!row.label.empty()) entry["label"] = row.label;
    entry.update({{"agreed_mean", f.agreed_mean},
                  {"agreed_lo", f.agreed_lo},
                  {"agreed_hi", f.agreed_hi},
                  {"agreed_median", f.agreed_median},
                  {"identical", f.identical},
                  {"agreed", row.agreed},
                  {"plan", plan_to_json(row.plan)}});
    json["results"].push_back(std::move(entry));
  }
  return json;
}

std::string greedy_table(const GreedyResult& result) {
  std::size_t width = 6;
  const auto title = [](const GreedyRow& row) {
    return row.label.empty() ? row.name : row.label + ": " + row.name;
  };
  for (const GreedyRow& row : result.rows) width = std::max(width, title(row).size());
  std::string text = fmt::format("{:{}}  {:>12}  {:>17}  {:>8}  {:>11}\n", "recipe", width, "mean tokens",
                                 "95 % interval", "median", "identical %");
  for (const GreedyRow& row : result.rows) {
    const GreedyFigures f = summarize(result, row);
    text += fmt::format("{:{}}  {:>12.1f}  {:>17}  {:>8.1f}  {:>11.1f}\n", title(row), width, f.agreed_mean,
                        fmt::format("{:.1f} - {:.1f}", f.agreed_lo, f.agreed_hi), f.agreed_median,
                        100 * f.identical);
  }
  const double tokens = std::accumulate(result.lengths.begin(), result.lengths.end(), 0.0);
  const double prompts = std::max<double>(1, static_cast<double>(result.lengths.size()));
  return text + fmt::format(
                    "tokens until a generation first differs; {} prompts, generations of {:.1f} tokens on "
                    "average (at most {}); reference: {}\n",
                    result.lengths.size(), tokens / prompts, result.generated_tokens,
                    result.rows.empty() ? "-" : result.rows.front().name);
}

}  // namespace kvant
