#include "eval/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Describes one figure of a row, and the fields that give the figure's noise.
struct FigureKind {
  const char* name;
  bool more_is_better;
  // `lo` and `hi` name the fields of the figure's interval; null means that the row has no interval.
  const char* lo;
  const char* hi;
  // Returns the values whose mean is the figure, one value per piece of text or prompt. The two results must
  // list their pieces in one order. An empty vector means that the pieces are unknown.
  std::function<std::vector<double>(const Json& document, const Json& row)> pieces;
};

std::vector<double> none(const Json& /*document*/, const Json& /*row*/) {
  return {};
}
std::vector<double> blocks(const Json& /*document*/, const Json& row) {
  return numbers_member(row, "kld_blocks").value_or(std::vector<double>{});
}
std::vector<double> agreed(const Json& /*document*/, const Json& row) {
  return numbers_member(row, "agreed").value_or(std::vector<double>{});
}
std::vector<double> identical(const Json& document, const Json& row) {
  std::vector<double> same = agreed(document, row);
  const auto lengths = numbers_member(document, "lengths").value_or(std::vector<double>{});
  if (lengths.size() != same.size()) return {};
  for (std::size_t i = 0; i < same.size(); ++i) same[i] = same[i] == lengths[i] ? 1 : 0;
  return same;
}
std::vector<double> answer_field(const Json& row, const char* field) {
  const auto answers = row.find("answers");
  if (answers == row.end() || !answers->is_array()) return {};
  std::vector<double> values;
  for (const Json& answer : *answers) {
    const Json value = answer.is_object() && answer.contains(field) ? answer.at(field) : Json();
    if (!value.is_boolean() && !value.is_number()) return {};
    values.push_back(value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>());
  }
  return values;
}
std::vector<double> answer_logp(const Json& /*document*/, const Json& row) {
  return answer_field(row, "logp");
}
std::vector<double> answer_exact(const Json& /*document*/, const Json& row) {
  return answer_field(row, "exact");
}
std::vector<double> answer_right(const Json& /*document*/, const Json& row) {
  return answer_field(row, "right");
}
std::vector<double> answer_valid(const Json& /*document*/, const Json& row) {
  return answer_field(row, "valid");
}

struct SchemaKind {
  const char* schema;
  // This field distinguishes the rows of one recipe. Null means that a recipe has one row.
  const char* row_context;
  std::vector<FigureKind> figures;
};

const std::vector<SchemaKind>& schemas() {
  static const std::vector<SchemaKind> kSchemas = {
      {"kvant.eval/2",
       nullptr,
       {{"kld_mean", false, "kld_lo", "kld_hi", blocks},
        {"kld_p999", false, nullptr, nullptr, none},
        {"top1", true, nullptr, nullptr, none},
        {"bits_all", false, nullptr, nullptr, none},
        {"constant_bytes", false, nullptr, nullptr, none}}},
      {"kvant.layers/1", nullptr, {{"relative", false, nullptr, nullptr, none}}},
      {"kvant.retrieval/1",
       nullptr,
       {{"logp", true, nullptr, nullptr, answer_logp}, {"exact", true, nullptr, nullptr, answer_exact}}},
      {"kvant.greedy/2",
       nullptr,
       {{"agreed_mean", true, "agreed_lo", "agreed_hi", agreed},
        {"identical", true, nullptr, nullptr, identical}}},
      {"kvant.tasks/1",
       "depth",
       {{"score", true, "score_lo", "score_hi", answer_right},
        {"valid_share", true, "valid_lo", "valid_hi", answer_valid}}},
      {"kvant.drift/1",
       nullptr,
       {{"kld_mean", false, "kld_lo", "kld_hi", none}, {"top1", true, nullptr, nullptr, none}}},
      {"kvant.bench/1",
       "depth",
       {{"prompt_tps", true, nullptr, nullptr, none}, {"decode_tps", true, nullptr, nullptr, none}}}};
  return kSchemas;
}

// Refers to one result inside a document.
struct Row {
  const SchemaKind* kind;
  const Json* document;
  const Json* json;
};
// The key identifies a row in both files.
using Rows = std::map<std::string, Row>;

Result<const SchemaKind*> kind_of(const Json& document) {
  const std::string schema = text_member(document, "schema").value_or("");
  std::string known;
  for (const SchemaKind& kind : schemas()) {
    if (schema == kind.schema) return &kind;
    known += std::string(known.empty() ? "" : ", ") + kind.schema;
  }
  if (schema.empty())
    return error(
        "one of the results has no \"schema\": give files that --json has written; supported schemas: {}",
        known);
  return error("a result of schema '{}' cannot be compared; supported schemas: {}", schema, known);
}

std::string row_name(const SchemaKind& kind, const Json& document, const Json& row) {
  std::string name = text_member(row, "label").value_or("");
  name += (name.empty() ? "" : ": ") + text_member(row, "recipe").value_or("");
  if (const auto context = number_member(document, "context")) name += fmt::format(" at {} tokens", *context);
  if (const auto task = text_member(row, "task")) name += " on " + *task;
  if (kind.row_context == nullptr) return name;
  if (const auto context = number_member(row, kind.row_context))
    name += fmt::format(" at {} {}", kind.row_context, *context);
  return name;
}

Result<Rows> rows_of(const Json& documents) {
  Rows rows;
  for (const Json& document : documents) {
    const auto kind = kind_of(document);
    if (!kind.ok()) return kind.error();
    if (!document.contains("results") || !document.at("results").is_array())
      return error("a document of schema '{}' has no list of results", (*kind)->schema);
    for (const Json& row : document.at("results")) {
      if (!row.is_object())
        return error("a result in a document of schema '{}' is not an object", (*kind)->schema);
      rows.insert({row_name(**kind, document, row), {*kind, &document, &row}});
    }
  }
  return rows;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Verdict verdict_of(double change, bool more_is_better) {
  return (change > 0) == more_is_better ? Verdict::better : Verdict::worse;
}

// Returns whether two documents were measured on the same text.
bool same_text(const Json& a, const Json& b) {
  return a.contains("text") && b.contains("text") && a["text"] == b["text"];
}

void judge_by_pairs(const std::vector<double>& before, const std::vector<double>& after, bool more_is_better,
                    FigureComparison& result) {
  std::vector<double> changes(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) changes[i] = after[i] - before[i];
  result.paired = true;
  result.interval = student_interval(changes);
  const bool crosses_zero = result.interval->lo <= 0 && result.interval->hi >= 0;
  result.verdict = crosses_zero ? Verdict::noise : verdict_of(mean(changes), more_is_better);
}

std::optional<Interval> interval_of(const Json& row, const FigureKind& kind) {
  const auto lo = number_member(row, kind.lo), hi = number_member(row, kind.hi);
  if (!lo || !hi) return {};
  return Interval{*lo, *hi};
}

std::optional<FigureComparison> compare_figure(const std::string& name, const FigureKind& kind,
                                               const Row& before, const Row& after) {
  const Json &a = *before.json, &b = *after.json;
  const auto figure_a = number_member(a, kind.name), figure_b = number_member(b, kind.name);
  if (!figure_a || !figure_b) return {};
  FigureComparison result{name, kind.name, *figure_a, *figure_b};
  const auto pieces_a = kind.pieces(*before.document, a), pieces_b = kind.pieces(*after.document, b);
  if (same_text(*before.document, *after.document) && pieces_a.size() == pieces_b.size() &&
      pieces_a.size() > 1) {
    judge_by_pairs(pieces_a, pieces_b, kind.more_is_better, result);
  } else if (kind.lo != nullptr) {
    const auto interval_a = interval_of(a, kind), interval_b = interval_of(b, kind);
    if (!interval_a || !interval_b) return result;
    const bool apart = interval_a->hi < interval_b->lo || interval_b->hi < interval_a->lo;
    result.verdict = apart ? verdict_of(result.after - result.before, kind.more_is_better) : Verdict::noise;
  }
  return result;
}

void note_differences(const Json& before, const Json& after, Comparison& comparison) {
  const auto note = [&](const char* field, const char* text) {
    const bool differs = before.front().contains(field) && after.front().contains(field) &&
                         before.front()[field] != after.front()[field];
    if (differs) comparison.notes.emplace_back(text);
  };
  note("model", "the models differ");
  note("text", "the texts differ: chunks are not compared one by one");
  note("chunks", "the numbers of chunks differ");
  note("threads", "the numbers of threads differ");
}

const char* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::better:
      return "better";
    case Verdict::worse:
      return "worse";
    case Verdict::noise:
      return "within noise";
    case Verdict::unknown:
      break;
  }
  return "no interval";
}

std::string change_text(const FigureComparison& f) {
  if (f.before == 0) return f.after == 0 ? "0 %" : "-";
  return fmt::format("{:+.1f} %", 100 * (f.after - f.before) / std::abs(f.before));
}

Json as_array(const Json& documents) {
  return documents.is_array() ? documents : Json::array({documents});
}

}  // namespace

Interval student_interval(std::span<const double> values) {
  KVANT_CHECK(values.size() > 1, "an interval needs two values");
  // The table holds the 97.5 % quantiles for 1 .. 10 degrees of freedom. For more degrees of freedom, the
  // code uses an expansion that is accurate to 0.2 %.
  constexpr std::array<double, 10> kQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571,
                                                 2.447,  2.365, 2.306, 2.262, 2.228};
  const auto n = static_cast<double>(values.size());
  const double center = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - center) * (value - center);
  const double freedom = n - 1;
  const double quantile = values.size() - 1 <= kQuantiles.size()
                              ? kQuantiles[values.size() - 2]
                              : 1.95996 + 2.3723 / freedom + 2.8225 / (freedom * freedom);
  const double half = quantile * std::sqrt(squares / freedom / n);
  return {center - half, center + half};
}

Result<Comparison> compare_results(const Json& before, const Json& after) {
  const Json first = as_array(before), second = as_array(after);
  if (first.empty() || second.empty()) return error("one of the results is empty");
  const auto rows_before = rows_of(first), rows_after = rows_of(second);
  if (!rows_before.ok()) return rows_before.error();
  if (!rows_after.ok()) return rows_after.error();
  Comparison comparison;
  note_differences(first, second, comparison);
  for (const auto& [name, row] : *rows_before) {
    const auto other = rows_after->find(name);
    if (other == rows_after->end() || other->second.kind != row.kind) {
      comparison.only_before.push_back(name);
      continue;
    }
    for (const FigureKind& kind : row.kind->figures) {
      if (const auto figure = compare_figure(name, kind, row, other->second))
        comparison.figures.push_back(*figure);
    }
  }
  for (const auto& [name, row] : *rows_after) {
    if (!rows_before->contains(name)) comparison.only_after.push_back(name);
  }
  if (comparison.figures.empty()) {
    const auto first_of = [](const Rows& rows) { return rows.empty() ? "nothing" : rows.begin()->first; };
    return error("the two results have no row in common: the first has '{}', the second '{}'",
                 first_of(*rows_before), first_of(*rows_after));
  }
  return comparison;
}

std::string comparison_table(const Comparison& comparison) {
  std::size_t width = 3;
  for (const FigureComparison& f : comparison.figures) width = std::max(width, f.row.size());
  std::string text = fmt::format("{:{}}  {:12}  {:>12} {:>12} {:>10}  {:>25}  {}\n", "row", width, "figure",
                                 "before", "after", "change", "95 % interval of change", "verdict");
  for (const FigureComparison& f : comparison.figures) {
    const std::string interval =
        f.interval ? fmt::format("{:+.4g} to {:+.4g}", f.interval->lo, f.interval->hi) : "-";
    text += fmt::format("{:{}}  {:12}  {:>12.5g} {:>12.5g} {:>10}  {:>25}  {}\n", f.row, width, f.figure,
                        f.before, f.after, change_text(f), interval, text_of(f.verdict));
  }
  for (const std::string& row : comparison.only_before) text += fmt::format("only before: {}\n", row);
  for (const std::string& row : comparison.only_after) text += fmt::format("only after: {}\n", row);
  for (const std::string& note : comparison.notes) text += fmt::format("{}\n", note);
  return text;
}

Json comparison_to_json(const Comparison& comparison) {
  Json json = {{"schema", "kvant.compare/1"}, {"results", Json::array()}};
  for (const FigureComparison& f : comparison.figures) {
    Json entry = {{"row", f.row},     {"figure", f.figure}, {"before", f.before},
                  {"after", f.after}, {"paired", f.paired}, {"verdict", text_of(f.verdict)}};
    if (f.interval) entry.update({{"difference_lo", f.interval->lo}, {"difference_hi", f.interval->hi}});
    json["results"].push_back(std::move(entry));
  }
  json["only_before"] = comparison.only_before;
  json["only_after"] = comparison.only_after;
  json["notes"] = comparison.notes;
  return json;
}

}  // namespace kvant
