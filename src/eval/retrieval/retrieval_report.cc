#include "eval/retrieval/retrieval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "eval/report_json.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Selects questions. Context 0 selects all contexts, and an empty task selects all tasks.
QuestionFilter of(int context, const std::string& task) {
  return [=](const AskedQuestion& asked) {
    return (context == 0 || asked.context == context) && (task.empty() || asked.task == task);
  };
}
QuestionFilter at_depth(double depth) {
  return [=](const AskedQuestion& asked) { return asked.depth == depth; };
}

Json figures_to_json(const RetrievalFigures& f) {
  return {{"questions", f.questions},    {"exact", f.exact},         {"logp", f.logp},
          {"logp_change", f.difference}, {"logp_lo", f.interval.lo}, {"logp_hi", f.interval.hi}};
}

Json row_to_json(const RetrievalResult& result, const RetrievalRow& row) {
  Json json = {{"recipe", row.name}};
  if (!row.label.empty()) json["label"] = row.label;
  json.update(figures_to_json(summarize(result, row, of(0, ""))));
  json["seconds"] = row.seconds;
  json["cells"] = Json::array();
  for (const int context : result.options.contexts) {
    for (const std::string& task : retrieval_tasks()) {
      Json cell = {{"context", context}, {"task", task}};
      cell.update(figures_to_json(summarize(result, row, of(context, task))));
      json["cells"].push_back(std::move(cell));
    }
  }
  json["answers"] = Json::array();
  for (std::size_t i = 0; i < result.questions.size(); ++i) {
    const AskedQuestion& asked = result.questions[i];
    json["answers"].push_back({{"task", asked.task},
                               {"context", asked.context},
                               {"document", asked.document},
                               {"depth", asked.depth < 0 ? Json(nullptr) : Json(asked.depth)},
                               {"logp", row.scores[i].logp},
                               {"exact", row.scores[i].exact}});
  }
  json["plan"] = plan_to_json(row.plan);
  return json;
}

struct Column {
  std::string title;
  QuestionFilter filter;
};

// Formats the share of right answers and the change of the log-probability for each recipe and column.
std::string table(const RetrievalResult& result, const std::string& title,
                  const std::vector<Column>& columns) {
  constexpr int kWidth = 17;
  std::size_t width = 6;
  for (const RetrievalRow& row : result.rows)
    width = std::max(width, row.name.size() + (row.label.empty() ? 0 : row.label.size() + 2));
  std::string text = fmt::format("{}\n{:{}}", title, "recipe", width);
  for (const Column& column : columns) text += fmt::format("  {:>{}}", column.title, kWidth);
  text += fmt::format("  {:>17}\n", "95 % interval");
  for (const RetrievalRow& row : result.rows) {
    text += fmt::format("{:{}}", row.label.empty() ? row.name : row.label + ": " + row.name, width);
    RetrievalFigures last;
    for (const Column& column : columns) {
      last = summarize(result, row, column.filter);
      text += fmt::format("  {:>{}}", fmt::format("{:.0f} % {:+9.3f}", 100 * last.exact, last.difference),
                          kWidth);
    }
    text += fmt::format("  {:>+8.3f} {:>+8.3f}\n", last.interval.lo, last.interval.hi);
  }
  return text + "\n";
}

std::vector<Column> task_columns(int context) {
  std::vector<Column> columns;
  for (const std::string& task : retrieval_tasks()) columns.push_back({task, of(context, task)});
  columns.push_back({"all", of(context, "")});
  return columns;
}

std::vector<Column> depth_columns(const RetrievalResult& result) {
  std::set<double> depths;
  for (const AskedQuestion& asked : result.questions) {
    if (asked.depth >= 0) depths.insert(asked.depth);
  }
  std::vector<Column> columns;
  for (const double depth : depths)
    columns.push_back({fmt::format("at {:.0f} %", 100 * depth), at_depth(depth)});
  columns.push_back({"all", [](const AskedQuestion& asked) { return asked.depth >= 0; }});
  return columns;
}

}  // namespace

nlohmann::ordered_json retrieval_to_json(const RetrievalResult& result, const std::string& model) {
  Json json = {{"schema", "kvant.retrieval/1"},
               {"model", model},
               {"contexts", result.options.contexts},
               {"documents", result.options.documents},
               {"seed", result.options.seed},
               {"text", result.text},
               {"results", Json::array()}};
  for (const RetrievalRow& row : result.rows) json["results"].push_back(row_to_json(result, row));
  return json;
}

std::string retrieval_table(const RetrievalResult& result) {
  std::string text =
      "correct answers, and the difference of their log-probability from the reference's (nats, mean over "
      "questions)\n\n";
  for (const int context : result.options.contexts)
    text += table(result, fmt::format("{} tokens", context), task_columns(context));
  if (result.options.contexts.size() > 1) text += table(result, "all contexts", task_columns(0));
  text += table(result, "needles (pass keys and keys) by depth, all contexts", depth_columns(result));
  text += fmt::format("{} documents of each context, {} questions; reference: {}\n", result.options.documents,
                      result.questions.size(), result.rows.front().name);
  return text;
}

}  // namespace kvant
