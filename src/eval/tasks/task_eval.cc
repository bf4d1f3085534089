#include "eval/tasks/task_eval.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "eval/quality_eval.h"

namespace kvant {
namespace {

std::vector<bool> right_answers(const TaskRow& row) {
  std::vector<bool> right;
  for (const TaskAnswer& answer : row.answers) right.push_back(answer.score.is_right);
  return right;
}

std::vector<bool> valid_answers(const TaskRow& row) {
  std::vector<bool> valid;
  for (const TaskAnswer& answer : row.answers) valid.push_back(answer.score.is_valid);
  return valid;
}

// Judges all answers. Programs that judge take time, so threads share the answers.
void judge_answers(const Task& task, int n_threads, std::vector<TaskAnswer>& answers) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < answers.size(); i = next++)
      answers[i].score = task.problems[i].judge(answers[i].completion);
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < n_threads; ++i) threads.emplace_back(work);
  work();
}

// Returns the limit of TaskRow::max_tokens.
int max_tokens_of(const Task& task) {
  int most = 0;
  for (const TaskProblem& problem : task.problems) most = std::max(most, problem.prompt.options.max_tokens);
  return most;
}

}  // namespace

Result<TaskRow> evaluate_task(Engine& engine, AttentionBackend& backend, const PlacedPlan& plan,
                              const Task& task, const BatchOptions& options, int judges,
                              const std::function<void()>& done) {
  std::vector<BatchPrompt> prompts;
  for (const TaskProblem& problem : task.problems) prompts.push_back(problem.prompt);
  const auto start = std::chrono::steady_clock::now();
  auto completions = generate_batch(engine, backend, plan, prompts, options, done);
  if (!completions.ok()) return completions.error();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  TaskRow row{.recipe = plan->name,
              .task = task.name,
              .depth = task.depth,
              .has_form = task.has_form,
              .max_tokens = max_tokens_of(task),
              .prompts = task_fingerprint(task),
              .seconds = seconds.count()};
  for (std::size_t i = 0; i < completions->size(); ++i) {
    BatchCompletion& completion = (*completions)[i];
    row.answers.push_back(
        {task.problems[i].id, {}, completion.n_tokens, completion.was_cut, std::move(completion.text)});
  }
  KVANT_RETURN_IF_ERROR(judge_row(task, judges, row));
  return row;
}

Status judge_row(const Task& task, int judges, TaskRow& row) {
  judge_answers(task, judges, row.answers);
  for (const TaskAnswer& answer : row.answers) {
    if (!answer.score.fault.empty())
      return error("problem {} of {} was not judged: {}", answer.id, task.name, answer.score.fault);
  }
  return {};
}

Status check_problems(const TaskRow& row, const Task& task) {
  if (row.answers.size() != task.problems.size()) {
    return error("{} solved {} problems of {}, and not {}: give the --chunks of that run", row.recipe,
                 row.answers.size(), row.task, task.problems.size());
  }
  if (row.max_tokens > 0 && row.max_tokens != max_tokens_of(task)) {
    return error("{} solved {} with -n {}, and not {}: give the -n of that run", row.recipe, row.task,
                 row.max_tokens, max_tokens_of(task));
  }
  if (row.prompts != task_fingerprint(task)) {
    return error("{} solved other problems of {}: give the {}-f and --task-data of that run", row.recipe,
                 row.task, row.max_tokens > 0 ? "" : "-n, ");
  }
  return {};
}

std::string task_fingerprint(const Task& task) {
  std::vector<std::int32_t> all;
  for (const TaskProblem& problem : task.problems) {
    all.insert(all.end(), problem.prompt.tokens.begin(), problem.prompt.tokens.end());
    all.push_back(problem.prompt.options.max_tokens);
  }
  return fingerprint(all);
}

TaskFigures summarize(const TaskRow& row, const TaskRow& reference) {
  TaskFigures figures{.problems = static_cast<int>(row.answers.size())};
  double tokens = 0;
  for (const TaskAnswer& answer : row.answers) {
    figures.right += answer.score.is_right ? 1 : 0;
    figures.valid += answer.score.is_valid ? 1 : 0;
    figures.cut += answer.was_cut ? 1 : 0;
    tokens += answer.tokens;
  }
  figures.score = static_cast<double>(figures.right) / figures.problems;
  figures.interval = wilson_interval(figures.right, figures.problems);
  figures.valid_share = static_cast<double>(figures.valid) / figures.problems;
  figures.valid_interval = wilson_interval(figures.valid, figures.problems);
  figures.mean_tokens = tokens / figures.problems;
  figures.change = compare_shares(right_answers(reference), right_answers(row));
  figures.valid_change = compare_shares(valid_answers(reference), valid_answers(row));
  return figures;
}

}  // namespace kvant
