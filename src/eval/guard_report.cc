#include "eval/guard_report.h"

#include "base/progress.h"

namespace kvant {
namespace {

// Formats a share with two significant digits, as "0.52 %" or "21 %".
std::string percent(double share) {
  return share < 0.1 ? fmt::format("{:.2g} %", 100 * share) : fmt::format("{:.0f} %", 100 * share);
}

}  // namespace

std::string guard_summary(const GuardReport& report) {
  const std::string kept = readable_bytes(static_cast<double>(report.bytes));
  if (report.checks == 0) {
    return fmt::format(
        "guard (1/{}): nothing to check yet: no page was sealed before the checked steps ({} for unquantized "
        "K and V)\n",
        report.every, kept);
  }
  const int worst = worst_layer(report, 1);
  return fmt::format(
      "guard (1/{}): {} checks; relative error of attention: {} on average, {} in the worst layer, {}\n  "
      "estimated KL divergence: {:.2g} nats; memory for unquantized K and V: {}\n",
      report.every, report.checks, percent(report.relative), percent(report.layers[worst].error.relative()),
      worst, report.estimated_kld, kept);
}

nlohmann::ordered_json guard_to_json(const GuardReport& report, const std::string& recipe) {
  using Json = nlohmann::ordered_json;
  const auto warning = guard_warning(report, recipe);
  Json json = {{"every", report.every},
               {"steps", report.steps},
               {"checks", report.checks},
               {"bytes", report.bytes},
               {"relative_error", report.relative},
               {"estimated_kld", report.estimated_kld},
               {"warning", warning ? Json(*warning) : Json(nullptr)},
               {"layers", Json::array()}};
  for (const GuardedLayer& layer : report.layers) {
    json["layers"].push_back({{"kv_head", layer.kv_head},
                              {"checks", layer.checks},
                              {"relative_error", layer.error.relative()},
                              {"relative_error_of_k", layer.keys.relative()}});
  }
  return json;
}

}  // namespace kvant
