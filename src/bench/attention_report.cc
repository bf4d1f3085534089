#include "bench/attention_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "eval/report_json.h"

namespace kvant {
namespace {

constexpr double kGiga = 1e9;

// How many times faster `row` is than the rival at its context.
std::optional<double> ratio(std::span<const AttentionRow> rows, const AttentionRow& row,
                            const std::string& rival) {
  const AttentionRow* other = row_of_rival(rows, row, rival);
  if (other == nullptr) return std::nullopt;
  return other->seconds / row.seconds;
}

}  // namespace

std::string attention_to_json(std::span<const AttentionRow> rows, const AttentionSettings& settings) {
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "kvant.bench.attention/2"},
               {"heads", settings.shape.n_heads},
               {"kv_heads", settings.shape.n_kv_heads},
               {"dim", settings.shape.head_dim},
               {"threads", settings.n_threads},
               {"repeats", settings.repeats},
               {"cache_contents", "synthetic"},
               {"read_gbps", settings.read_bandwidth / kGiga},
               {"results", Json::array()}};
  const auto figure = [](std::optional<double> x) { return x.has_value() ? Json(*x) : Json(nullptr); };
  for (const AttentionRow& row : rows) {
    json["results"].push_back({{"recipe", row.name},
                               {"ctx", row.context},
                               {"bits", row.bits},
                               {"layers", row.n_layers},
                               {"us", row.seconds * 1e6},
                               {"gbps", read_speed(row) / kGiga},
                               {"read_percent", 100 * read_speed(row) / settings.read_bandwidth},
                               {"ratio_f16", figure(ratio(rows, row, "ggml:f16"))},
                               {"ratio_q4_0", figure(ratio(rows, row, "ggml:q4_0"))},
                               {"kernels", row.kernels}});
  }
  return json_text(json);
}

std::string attention_table(std::span<const AttentionRow> rows, const AttentionSettings& settings) {
  std::size_t width = 6;
  for (const AttentionRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format("{:>8}  {:{}}  {:>6} {:>11} {:>7} {:>7}  {:>8} {:>9}\n", "ctx", "recipe",
                                 width, "bits", "us/layer", "GB/s", "% read", "ggml:f16", "ggml:q4_0");
  const auto cell = [](std::optional<double> x, int columns) {
    return fmt::format("{:>{}}", x.has_value() ? fmt::format("{:.2f}x", *x) : "-", columns);
  };
  for (const AttentionRow& row : rows) {
    const double speed = read_speed(row);
    text +=
        fmt::format("{:>8}  {:{}}  {:>6.2f} {:>11.1f} {:>7.2f} {:>7.1f}  {} {}\n", row.context, row.name,
                    width, row.bits, row.seconds * 1e6, speed / kGiga, 100 * speed / settings.read_bandwidth,
                    cell(ratio(rows, row, "ggml:f16"), 8), cell(ratio(rows, row, "ggml:q4_0"), 9));
  }
  return text;
}

}  // namespace kvant
