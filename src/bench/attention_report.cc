#include "bench/attention_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/report_json.h"

namespace kvant {
namespace {

constexpr double kGiga = 1e9;

// Returns the microseconds that memory alone takes to deliver the bytes that the row reads.
double limit_us(const AttentionRow& row, const AttentionSettings& settings) {
  return row.bytes / settings.read_bandwidth * 1e6;
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
  for (const AttentionRow& row : rows) {
    const AttentionRow* rival = fastest_rival(rows, row);
    json["results"].push_back(
        {{"recipe", row.name},
         {"ctx", row.context},
         {"bits", row.bits},
         {"layers", row.n_layers},
         {"us", row.seconds * 1e6},
         {"gbps", read_speed(row) / kGiga},
         {"read_percent", 100 * read_speed(row) / settings.read_bandwidth},
         {"limit_us", limit_us(row, settings)},
         {"rival", rival == nullptr ? Json(nullptr) : Json(rival->name)},
         {"ratio", rival == nullptr ? Json(nullptr) : Json(rival->seconds / row.seconds)},
         {"kernels", row.kernels}});
  }
  return json_text(json);
}

std::string attention_table(std::span<const AttentionRow> rows, const AttentionSettings& settings) {
  std::size_t width = 6;
  for (const AttentionRow& row : rows) width = std::max(width, row.name.size());
  std::string text =
      fmt::format("{:>8}  {:{}}  {:>6} {:>11} {:>9} {:>7} {:>7}  {:>7}  {}\n", "ctx", "recipe", width, "bits",
                  "us/layer", "limit us", "GB/s", "% read", "ratio", "to the fastest rival");
  for (const AttentionRow& row : rows) {
    const double speed = read_speed(row);
    const AttentionRow* rival = fastest_rival(rows, row);
    const std::string ratio = rival == nullptr ? "-" : fmt::format("{:.2f}x", rival->seconds / row.seconds);
    text +=
        fmt::format("{:>8}  {:{}}  {:>6.2f} {:>11.1f} {:>9.1f} {:>7.2f} {:>7.1f}  {:>7}  {}\n", row.context,
                    row.name, width, row.bits, row.seconds * 1e6, limit_us(row, settings), speed / kGiga,
                    100 * speed / settings.read_bandwidth, ratio, rival == nullptr ? "-" : rival->name);
  }
  return text;
}

}  // namespace kvant
