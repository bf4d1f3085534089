#include "eval/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json row_to_json(const QualityRow& row) {
  const MetricsSummary& m = row.metrics;
  Json json = {{"recipe", row.name},
               {"asked", row.plan.asked.empty() ? row.name : row.plan.asked},
               {"bits_sealed", number(row.bits.sealed)},
               {"bits_all", number(row.bits.all)},
               {"constant_bytes", row.constants.bytes},
               {"constant_bits", number(row.constants.bits)},
               {"ppl", number(m.ppl)},
               {"kld_mean", number(m.kld_mean)},
               {"kld_lo", number(m.kld_lo)},
               {"kld_hi", number(m.kld_hi)},
               {"kld_median", number(m.kld_median)},
               {"kld_p99", number(m.kld_p99)},
               {"kld_p999", number(m.kld_p999)},
               {"kld_max", number(m.kld_max)},
               {"top1", number(m.top1)},
               {"rms_dp", number(m.rms_dp)},
               {"seconds", number(row.seconds)},
               {"positions", m.positions},
               {"kld_blocks", row.kld_blocks},
               {"calibration", calibration_state_name(row.plan.calibration)},
               {"plan", plan_to_json(row.plan)}};
  if (!row.label.empty()) json["label"] = row.label;
  return json;
}

std::size_t label_width(const QualityResult& result) {
  std::size_t width = 0;
  for (const QualityRow& row : result.rows) width = std::max(width, row.label.size());
  return width;
}

// Formats a divergence with five decimals. A value below 1e-4 gets an exponent instead, because divergences
// span many powers of ten.
std::string divergence(double value) {
  if (value == 0) return "0";
  return value < 1e-4 ? fmt::format("{:.2e}", value) : fmt::format("{:.5f}", value);
}

std::string kibibytes(std::int64_t bytes) {
  return bytes == 0 ? "-" : fmt::format("{:.1f}", static_cast<double>(bytes) / 1024);
}

std::string bits(double value) {
  return std::isfinite(value) ? fmt::format("{:.3f}", value) : "-";
}

}  // namespace

nlohmann::ordered_json plan_to_json(const PlanReport& report) {
  Json rows = Json::array(), fallbacks = Json::array();
  for (const PlanRow& row : report.rows) {
    rows.push_back({{"side", side_name(row.side)},
                    {"layers", row.layers},
                    {"kv_heads", row.kv_heads},
                    {"transforms", row.transforms},
                    {"format", row.format},
                    {"kernel", row.kernel},
                    {"page_bytes", row.page_bytes}});
  }
  for (const Fallback& f : report.fallbacks) fallbacks.push_back({{"what", f.what}, {"reason", f.reason}});
  Json json = {{"asked", report.asked},
               {"recipe", report.summary},
               {"tail", report.tail},
               {"sink", report.sink},
               {"window", report.window},
               {"prefill", report.prefill},
               {"calibration", calibration_state_name(report.calibration)}};
  if (!report.calibration_note.empty()) json["calibration_note"] = report.calibration_note;
  if (!report.encoder.empty()) json["encoder"] = report.encoder;
  json["rows"] = std::move(rows);
  json["fallbacks"] = std::move(fallbacks);
  return json;
}

nlohmann::ordered_json eval_to_json(const QualityResult& result, const std::string& model) {
  Json json = {{"schema", "kvant.eval/2"}, {"model", model},      {"context", result.context},
               {"chunks", result.chunks},  {"text", result.text}, {"results", Json::array()}};
  for (const QualityRow& row : result.rows) json["results"].push_back(row_to_json(row));
  return json;
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string eval_table(const QualityResult& result) {
  std::size_t width = 6;
  for (const QualityRow& row : result.rows) width = std::max(width, row.name.size());
  const std::size_t labels = label_width(result);
  const auto label_column = [&](const std::string& label) {
    return labels > 0 ? fmt::format("{:{}}  ", label, labels) : "";
  };
  std::string text =
      label_column("") +
      fmt::format(
          "{:{}}  {:>6} {:>6} {:>9} {:>6} {:>9}  {:>9} {:>21} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}\n",
          "recipe", width, "sealed", "bits", "const KiB", "+ bits", "ppl", "mean KLD", "95 % interval",
          "median", "99 %", "99.9 %", "max", "top-1 %", "RMS dp %", "seconds");
  for (const QualityRow& row : result.rows) {
    const MetricsSummary& m = row.metrics;
    const std::string interval = divergence(m.kld_lo) + " - " + divergence(m.kld_hi);
    text += label_column(row.label);
    text += fmt::format(
        "{:{}}  {:>6} {:>6} {:>9} {:>6} {:>9.4f}  {:>9} {:>21} {:>9} {:>9} {:>9} {:>9} {:>8.3f} {:>8.3f} "
        "{:>8.1f}\n",
        row.name, width, bits(row.bits.sealed), bits(row.bits.all), kibibytes(row.constants.bytes),
        row.constants.bytes == 0 ? "-" : bits(row.constants.bits), m.ppl, divergence(m.kld_mean), interval,
        divergence(m.kld_median), divergence(m.kld_p99), divergence(m.kld_p999), divergence(m.kld_max),
        100 * m.top1, 100 * m.rms_dp, row.seconds);
  }
  for (const QualityRow& row : result.rows) {
    if (!row.plan.calibration_note.empty())
      text += fmt::format("{}: {}\n", row.name, row.plan.calibration_note);
  }
  const std::int64_t positions = result.rows.empty() ? 0 : result.rows.front().metrics.positions;
  text += "bits: per value of K and V, averaged over the fill of the newest page; + bits: model constants\n";
  text += fmt::format("{} chunks of {} tokens, {} scored positions; reference: {}\n", result.chunks,
                      result.context, positions, result.rows.empty() ? "-" : result.rows.front().name);
  return text;
}

}  // namespace kvant
