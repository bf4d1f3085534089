#include "eval/limits/limit_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

const LimitCount& count_at(const LimitRow& row, int context, LimitKind kind) {
  const auto cell = std::find_if(row.cells.begin(), row.cells.end(),
                                 [&](const LimitCell& c) { return c.context == context; });
  return cell->count(kind);
}

// Long answers often diverge at a token that was nearly a tie. The sentence therefore gives figures without a
// verdict.
std::string answer_sentence(const LimitRow& row, const std::string& reference) {
  std::string text;
  for (const LimitCell& cell : row.cells) {
    const LimitCount& count = cell.count(LimitKind::answer);
    const std::string lead = text.empty() ? fmt::format("agrees with {} for ", reference) : ", ";
    text += fmt::format("{}{} of {} tokens at context {}", lead, count.kept, count.reference, cell.context);
  }
  return text;
}

Json count_to_json(const LimitCount& count) {
  return {{"asked", count.asked}, {"reference", count.reference}, {"own", count.own}, {"kept", count.kept}};
}

Json row_to_json(const LimitResult& result, const LimitRow& row) {
  Json cells = Json::array(), limits = Json::object();
  for (const LimitCell& cell : row.cells) {
    Json json = {{"context", cell.context}};
    for (const LimitKind kind : kLimitKinds) json[limit_name(kind)] = count_to_json(cell.count(kind));
    cells.push_back(std::move(json));
  }
  for (const LimitKind kind : kLimitKinds) {
    const Limit limit = find_limit(row, kind);
    limits[limit_name(kind)] = {{"held", limit.held > 0 ? Json(limit.held) : Json(nullptr)},
                                {"broken", limit.broken > 0 ? Json(limit.broken) : Json(nullptr)},
                                {"says", limit_sentence(result, row, kind)}};
  }
  return {{"recipe", row.name}, {"limits", limits}, {"cells", cells}};
}

}  // namespace

nlohmann::ordered_json limits_to_json(const LimitResult& result, const std::string& model) {
  Json contexts = Json::array(), rows = Json::array();
  for (const LimitRow& row : result.rows) rows.push_back(row_to_json(result, row));
  for (const LimitCell& cell : result.rows.front().cells) contexts.push_back(cell.context);
  return {{"schema", "kvant.limits/1"},
          {"model", model},
          {"contexts", contexts},
          {"answer_tokens", result.options.answer_tokens},
          {"seed", result.options.seed},
          {"text", result.text},
          {"results", rows}};
}

std::string limit_sentence(const LimitResult& result, const LimitRow& row, LimitKind kind) {
  const std::string& reference = result.rows.front().name;
  if (kind == LimitKind::answer) return answer_sentence(row, reference);
  const Limit limit = find_limit(row, kind);
  if (!limit.judged) return fmt::format("not judged: {} gets none right", reference);
  const auto left = [&](int context) {
    const LimitCount& count = count_at(row, context, kind);
    return fmt::format("{} of {} kept", count.kept, count.reference);
  };
  if (limit.broken == 0)
    return fmt::format("holds up to {} tokens, the longest tested: {}", limit.held, left(limit.held));
  if (limit.held == 0) return fmt::format("breaks at {} tokens: {}", limit.broken, left(limit.broken));
  return fmt::format("holds up to {} tokens; at {}: {}", limit.held, limit.broken, left(limit.broken));
}

}  // namespace kvant
