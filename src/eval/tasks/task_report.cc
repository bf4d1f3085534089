#include "eval/tasks/task_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_reader.h"
#include "eval/quality_eval.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTasksSchema = "kvant.tasks/1";

// Returns the first row of the same task, which is the reference's.
const TaskRow& reference_of(const TaskRow& row, const std::vector<TaskRow>& rows) {
  return *std::ranges::find_if(
      rows, [&](const TaskRow& other) { return other.task == row.task && other.depth == row.depth; });
}

Json answer_to_json(const TaskRow& row, const TaskAnswer& answer) {
  Json json = {{"id", answer.id}, {"right", answer.score.is_right}};
  if (row.has_form) json["valid"] = answer.score.is_valid;
  json.update({{"tokens", answer.tokens}, {"cut", answer.was_cut}, {"completion", answer.completion}});
  return json;
}

Json row_to_json(const TaskRow& row, const TaskRow& reference) {
  const TaskFigures f = summarize(row, reference);
  Json json = {{"recipe", row.recipe}};
  if (!row.label.empty()) json["label"] = row.label;
  json.update({{"task", row.task}, {"depth", row.depth}, {"problems", f.problems}});
  if (row.max_tokens > 0) json["max_tokens"] = row.max_tokens;
  json.update({{"right", f.right},
               {"score", f.score},
               {"score_lo", f.interval.lo},
               {"score_hi", f.interval.hi},
               {"gained", f.change.gained},
               {"lost", f.change.lost},
               {"change", f.change.difference},
               {"change_lo", f.change.interval.lo},
               {"change_hi", f.change.interval.hi},
               {"change_p", f.change.p}});
  if (row.has_form) {
    json.update({{"valid", f.valid},
                 {"valid_share", f.valid_share},
                 {"valid_lo", f.valid_interval.lo},
                 {"valid_hi", f.valid_interval.hi},
                 {"valid_change", f.valid_change.difference},
                 {"valid_change_lo", f.valid_change.interval.lo},
                 {"valid_change_hi", f.valid_change.interval.hi}});
  }
  json.update(
      {{"cut", f.cut}, {"mean_tokens", f.mean_tokens}, {"seconds", row.seconds}, {"prompts", row.prompts}});
  json["answers"] = Json::array();
  for (const TaskAnswer& answer : row.answers) json["answers"].push_back(answer_to_json(row, answer));
  json["plan"] = row.plan;
  return json;
}

TaskRow row_from_json(const Json& json) {
  TaskRow row{.recipe = json.at("recipe"),
              .label = json.value("label", ""),
              .task = json.at("task"),
              .depth = json.at("depth"),
              .has_form = json.contains("valid"),
              .max_tokens = json.value("max_tokens", 0),
              .prompts = json.at("prompts"),
              .seconds = json.at("seconds"),
              .plan = json.at("plan")};
  for (const Json& answer : json.at("answers")) {
    row.answers.push_back({answer.at("id"),
                           {answer.at("right"), answer.value("valid", false)},
                           answer.at("tokens"),
                           answer.at("cut"),
                           answer.at("completion")});
  }
  return row;
}

Json run_to_json(const TaskRun& run) {
  return {{"schema", kTasksSchema},
          {"model", run.model},
          {"weights", run.weights},
          {"device", run.device},
          {"parallel", run.parallel}};
}

// Names the option that sets a value of run_to_json().
std::string option_of(const std::string& key) {
  return key == "model" ? "-m" : "--" + key;
}

// Returns a fingerprint of all tasks' prompts.
std::string text_of(const std::vector<TaskRow>& rows) {
  std::vector<std::int32_t> all;
  for (const TaskRow& row : rows) {
    if (&row == &reference_of(row, rows)) all.insert(all.end(), row.prompts.begin(), row.prompts.end());
  }
  return fingerprint(all);
}

std::string title_of(const TaskRow& row) {
  return row.label.empty() ? row.recipe : row.label + ": " + row.recipe;
}

std::string percent(double share) {
  return fmt::format("{:.1f}", 100 * share);
}

std::string range(const Interval& interval, bool has_sign) {
  return has_sign ? fmt::format("{:+.1f} to {:+.1f}", 100 * interval.lo, 100 * interval.hi)
                  : fmt::format("{:.1f} - {:.1f}", 100 * interval.lo, 100 * interval.hi);
}

std::string row_line(const TaskRow& row, const TaskRow& reference, std::size_t width) {
  const TaskFigures f = summarize(row, reference);
  std::string line = fmt::format("{:{}}  {:>7}  {:>14}", title_of(row), width, percent(f.score),
                                 range(f.interval, /*has_sign=*/false));
  if (&row == &reference) {
    line += fmt::format("  {:>7}  {:>16}  {:>11}", "-", "-", "-");
  } else {
    line += fmt::format("  {:>+7.1f}  {:>16}  {:>11}", 100 * f.change.difference,
                        range(f.change.interval, /*has_sign=*/true),
                        fmt::format("+{} -{}", f.change.gained, f.change.lost));
  }
  if (row.has_form) line += fmt::format("  {:>7}", percent(f.valid_share));
  return line + fmt::format("  {:>6.0f}  {:>3}  {:>6.0f}\n", f.mean_tokens, f.cut, row.seconds);
}

}  // namespace

Json tasks_to_json(const TaskRun& run, const std::vector<TaskRow>& rows) {
  Json json = run_to_json(run);
  json["text"] = text_of(rows);
  json["results"] = Json::array();
  for (const TaskRow& row : rows) json["results"].push_back(row_to_json(row, reference_of(row, rows)));
  return json;
}

Result<EarlierTasks> tasks_from_json(const std::string& text) {
  const auto json = parse_json(text);
  if (!json.ok()) return error("the earlier result is {}", json.error().message);
  if (text_member(*json, "schema") != kTasksSchema)
    return error("the earlier result is no result of --tasks");
  try {
    EarlierTasks earlier{{json->at("model"), json->at("weights"), json->at("device"), json->at("parallel")},
                         {}};
    for (const Json& row : json->at("results")) earlier.rows.push_back(row_from_json(row));
    for (const TaskRow& row : earlier.rows) {
      if (row.answers.empty() || row.answers.size() != reference_of(row, earlier.rows).answers.size())
        return error("the earlier result has rows of {} with different numbers of problems", row.task);
    }
    return earlier;
  } catch (const Json::exception&) {
    return error("the earlier result lacks a part");
  }
}

Result<std::vector<TaskRow>> tasks_from_json(const std::string& text, const TaskRun& run) {
  auto earlier = tasks_from_json(text);
  if (!earlier.ok()) return earlier.error();
  const Json own = run_to_json(earlier->run), expected = run_to_json(run);
  for (const auto& [key, value] : expected.items()) {
    if (own[key] != value)
      return error("the earlier result was made with {} {}, and not {}", option_of(key), own[key].dump(),
                   value.dump());
  }
  return std::move(earlier->rows);
}

std::string tasks_table(const std::vector<TaskRow>& rows) {
  std::size_t width = 6;
  for (const TaskRow& row : rows) width = std::max(width, title_of(row).size());
  std::string text;
  for (const TaskRow& first : rows) {
    if (&first != &reference_of(first, rows)) continue;
    const std::string depth = first.depth > 0 ? fmt::format(" after {} tokens", first.depth) : "";
    text += fmt::format(
        "{}{}, {} problems\n{:{}}  {:>7}  {:>14}  {:>7}  {:>16}  {:>11}{}  {:>6}  {:>3}  {:>6}\n", first.task,
        depth, first.answers.size(), "recipe", width, "right %", "95 % interval", "change", "95 % interval",
        "gained,lost", first.has_form ? "  valid %" : "", "tokens", "cut", "s");
    for (const TaskRow& row : rows) {
      if (row.task == first.task && row.depth == first.depth) text += row_line(row, first, width);
    }
  }
  return text + fmt::format("change: compared with {}, problem by problem\n",
                            rows.empty() ? "-" : title_of(rows.front()));
}

}  // namespace kvant
