#include "bench/engine_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/median.h"
#include "bench/rest.h"
#include "eval/logit_metrics.h"

namespace kvant {
namespace {

struct Times {
  std::vector<double> prompt, decode;  // seconds of each run
  std::vector<double> tokens;          // seconds of each decoded token
};

Status time_once(Contender& contender, const BenchOptions& options, Times& times) {
  if (options.prompt > 0) {
    const auto seconds = contender.prompt_seconds(options.prompt);
    if (!seconds.ok()) return seconds.error();
    times.prompt.push_back(*seconds);
  }
  if (options.decode > 0) {
    const auto seconds = contender.token_seconds(options.decode);
    if (!seconds.ok()) return seconds.error();
    times.decode.push_back(std::accumulate(seconds->begin(), seconds->end(), 0.0));
    times.tokens.insert(times.tokens.end(), seconds->begin(), seconds->end());
  }
  return {};
}

BenchRow row_of(const Contender& contender, int depth, const BenchOptions& options, Times& times) {
  BenchRow row{contender.name(), depth, contender.bits()};
  row.asked = contender.asked();
  if (options.prompt > 0) row.prompt_tps = options.prompt / median(times.prompt);
  if (options.decode == 0) return row;
  row.decode_tps = options.parallel * options.decode / median(times.decode);
  std::sort(times.tokens.begin(), times.tokens.end());
  row.token_p50 = quantile(times.tokens, 0.5);
  row.token_p99 = quantile(times.tokens, 0.99);
  row.token_max = times.tokens.back();
  return row;
}

struct Comparison {
  std::string rival;  // empty if there is no rival
  double ratio = 0;
};

Comparison compare(std::span<const BenchRow> rows, const BenchRow& row, Rate rate) {
  const BenchRow* rival = fastest_rival(rows, row, rate);
  if (rival == nullptr || row.*rate == 0) return {};
  return {rival->name, row.*rate / (rival->*rate)};
}

}  // namespace

bool is_rival(const BenchRow& row) {
  return row.name.starts_with("llama.cpp:");
}

const BenchRow* fastest_rival(std::span<const BenchRow> rows, const BenchRow& row, Rate rate) {
  const BenchRow* first = nullptr;
  const BenchRow* fastest = nullptr;
  bool any = false;
  for (const BenchRow& other : rows) {
    if (other.depth != row.depth) continue;
    if (first == nullptr) first = &other;
    any = any || is_rival(other);
    if (!is_rival(other) || !stores_as_many_bits(other.bits, row.bits)) continue;
    if (fastest == nullptr || other.*rate > fastest->*rate) fastest = &other;
  }
  return any ? fastest : first;
}

Result<std::vector<BenchRow>> run_bench(std::span<const std::unique_ptr<Contender>> contenders,
                                        const BenchOptions& options,
                                        const std::function<void(int)>& advance) {
  KVANT_CHECK(options.repeats > 0, "a benchmark needs at least one run");
  std::vector<BenchRow> rows;
  for (const int depth : options.depths) {
    std::vector<Times> times(contenders.size());
    for (const auto& contender : contenders) KVANT_RETURN_IF_ERROR(contender->fill(depth));
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        rest();
        KVANT_RETURN_IF_ERROR(time_once(*contenders[i], options, times[i]));
        advance(1);
      }
    }
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      rows.push_back(row_of(*contenders[i], depth, options, times[i]));
    }
  }
  return rows;
}

std::string bench_to_json(std::span<const BenchRow> rows, const BenchOptions& options,
                          const std::string& model, int n_threads) {
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "kvant.bench/1"},  {"model", model},
               {"threads", n_threads},       {"prompt", options.prompt},
               {"decode", options.decode},   {"parallel", options.parallel},
               {"repeats", options.repeats}, {"cache_contents", options.from_text ? "text" : "synthetic"},
               {"results", Json::array()}};
  const auto figure = [](double x) { return x > 0 ? Json(x) : Json(nullptr); };
  const auto named = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  for (const BenchRow& row : rows) {
    const Comparison prompt = compare(rows, row, &BenchRow::prompt_tps);
    const Comparison decode = compare(rows, row, &BenchRow::decode_tps);
    json["results"].push_back({{"recipe", row.name},
                               {"asked", row.asked},
                               {"depth", row.depth},
                               {"bits", figure(row.bits)},
                               {"prompt_tps", figure(row.prompt_tps)},
                               {"prompt_rival", named(prompt.rival)},
                               {"prompt_ratio", figure(prompt.ratio)},
                               {"decode_tps", figure(row.decode_tps)},
                               {"decode_rival", named(decode.rival)},
                               {"decode_ratio", figure(decode.ratio)},
                               {"token_p50", figure(row.token_p50)},
                               {"token_p99", figure(row.token_p99)},
                               {"token_max", figure(row.token_max)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string bench_table(std::span<const BenchRow> rows) {
  std::size_t width = 6;
  for (const BenchRow& row : rows) width = std::max(width, row.name.size());
  std::string text =
      fmt::format("{:>8}  {:{}}  {:>5}  {:>10} {:>7} {:<{}}  {:>10} {:>7} {:<{}}  {:>7} {:>7} {:>7}\n",
                  "depth", "recipe", width, "bits", "prompt t/s", "ratio", "to", width, "decode t/s", "ratio",
                  "to", width, "ms: p50", "p99", "max");
  const auto cells = [&](const BenchRow& row, Rate rate) {
    const Comparison compared = compare(rows, row, rate);
    const std::string tps = row.*rate > 0 ? fmt::format("{:.2f}", row.*rate) : "-";
    const std::string ratio = compared.rival.empty() ? "-" : fmt::format("{:.2f}x", compared.ratio);
    return fmt::format("{:>10} {:>7} {:<{}}", tps, ratio, compared.rival.empty() ? "-" : compared.rival,
                       width);
  };
  const auto milliseconds = [](double seconds) {
    return seconds > 0 ? fmt::format("{:>7.2f}", 1e3 * seconds) : fmt::format("{:>7}", "-");
  };
  for (const BenchRow& row : rows) {
    text +=
        fmt::format("{:>8}  {:{}}  {:>5.2f}  {}  {}  {} {} {}\n", row.depth, row.name, width, row.bits,
                    cells(row, &BenchRow::prompt_tps), cells(row, &BenchRow::decode_tps),
                    milliseconds(row.token_p50), milliseconds(row.token_p99), milliseconds(row.token_max));
  }
  return text;
}

}  // namespace kvant
