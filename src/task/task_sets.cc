#include "task/task_sets.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/progress.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "cache/slab_memory.h"
#include "eval/cache_size.h"
#include "eval/llama_reference.h"
#include "eval/quality_eval.h"
#include "eval/report_json.h"
#include "eval/tasks/bfcl.h"
#include "eval/tasks/gsm8k.h"
#include "eval/tasks/human_eval.h"
#include "generate/prompt_steps.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// Describes a task that users can name.
struct TaskSet {
  const char* name;
  const char* summary;
  int max_tokens;
  // Names the file of the problems, and the file of the answers if another file holds them.
  const char* problems;
  const char* answers;
  // Names the category of BFCL; null for other tasks.
  const char* category;
};

constexpr TaskSet kTaskSets[] = {
    {"humaneval", "Python functions. Runs the programs that the model writes, in a sandbox", 768,
     "HumanEval.jsonl", nullptr, nullptr},
    {"gsm8k", "word problems whose answer is a number", 768, "gsm8k-test.jsonl", nullptr, nullptr},
    {"bfcl-simple", "a tool call with one tool", 384, "BFCL_v4_simple_python.json",
     "possible_answer/BFCL_v4_simple_python.json", "simple"},
    {"bfcl-multiple", "a tool call with several tools", 384, "BFCL_v4_multiple.json",
     "possible_answer/BFCL_v4_multiple.json", "multiple"},
    {"bfcl-parallel", "several tool calls", 512, "BFCL_v4_parallel.json",
     "possible_answer/BFCL_v4_parallel.json", "parallel"},
};

// Slabs of a cache may be half empty.
constexpr std::int64_t kLooseBytes = 32 * static_cast<std::int64_t>(kSlabBytes);

// Holds the texts of a task's files.
struct TaskData {
  const TaskSet* set;
  std::string problems, answers;
};

Result<std::string> read_data(const std::string& folder, const char* file) {
  if (file == nullptr) return std::string();
  auto text = read_text_file((std::filesystem::path(folder) / file).string());
  if (!text.ok())
    return error("{}: scripts/fetch-tasks says where the data of tasks is", text.error().message);
  return text;
}

const TaskSet* find_task_set(const std::string& name) {
  return std::ranges::find_if(kTaskSets, [&](const TaskSet& s) { return s.name == name; });
}

Result<std::vector<TaskData>> read_task_data(const TaskSetOptions& options) {
  std::vector<TaskData> all;
  for (const std::string& name : options.tasks) {
    KVANT_RETURN_IF_ERROR(check_task_name(name));
    const TaskSet* set = find_task_set(name);
    auto problems = read_data(options.data, set->problems), answers = read_data(options.data, set->answers);
    if (!problems.ok()) return problems.error();
    if (!answers.ok()) return answers.error();
    all.push_back({set, std::move(problems).value(), std::move(answers).value()});
  }
  return all;
}

Result<Task> make_task(const TaskSetOptions& options, const ChatTemplate& chat_template, const TaskData& data,
                       const std::string& before, int depth) {
  const int max_tokens = options.max_tokens > 0 ? options.max_tokens : data.set->max_tokens;
  if (data.set->category != nullptr) {
    return make_bfcl(chat_template, data.problems, data.answers,
                     {data.set->category, options.problems, max_tokens, before, depth});
  }
  const auto make = data.set->name == std::string("gsm8k") ? make_gsm8k : make_human_eval;
  return make(chat_template, data.problems, options.problems, max_tokens);
}

// Makes all tasks. Tool calls have a task for each depth.
Result<std::vector<Task>> make_tasks(const TaskSetOptions& options, const Tokenizer& tokenizer,
                                     const std::vector<TaskData>& data, const std::string& text) {
  const auto chat_template = ChatTemplate::open(tokenizer, "");
  if (!chat_template.ok()) return error("{}: tasks need one", chat_template.error().message);
  std::vector<Task> tasks;
  for (const TaskData& of_task : data) {
    for (const int depth : of_task.set->category != nullptr ? options.depths : std::vector<int>{0}) {
      std::string before;
      if (depth > 0) {
        auto cut = text_of_tokens(tokenizer, text, depth);
        if (!cut.ok()) return cut.error();
        before = std::move(cut).value();
      }
      auto task = make_task(options, **chat_template, of_task, before, depth);
      if (!task.ok()) return task.error();
      tasks.push_back(std::move(task).value());
    }
  }
  return tasks;
}

// Returns the tokens of the longest sequence that the task can make.
int longest_sequence(const Task& task) {
  int longest = 0;
  for (const TaskProblem& problem : task.problems) {
    const int n = static_cast<int>(problem.prompt.tokens.size()) + problem.prompt.options.max_tokens;
    longest = std::max(longest, n);
  }
  return longest;
}

// Returns how many sequences run at the same time: as many as asked for, or as many as fit into memory.
Result<int> parallel_sequences(const Session& session, const PlacedPlan& plan, int longest, int step_tokens,
                               int wanted) {
  const auto bytes = [&](int n) {
    return largest_batch_bytes(plan, longest, {n, step_tokens + kMinPromptStep}) + kLooseBytes;
  };
  const std::string what = fmt::format("a KV cache of {} tokens", longest);
  KVANT_RETURN_IF_ERROR(session.check_cache_memory(what, bytes(1)));
  int n = wanted;
  while (n > 1 && !session.check_cache_memory(what, bytes(n)).ok()) --n;
  return n;
}

bool is_row_of(const TaskRow& row, const std::string& recipe, const std::string& label,
               const std::string& task, int depth) {
  return row.recipe == recipe && row.label == label && row.task == task && row.depth == depth;
}

class TaskSetRun {
 public:
  TaskSetRun(const TaskSetOptions& options, const Session& session, const std::vector<Task>& tasks,
             std::vector<TaskRow> earlier)
      : options_(options), session_(session), tasks_(tasks), earlier_(std::move(earlier)) {}

  Status run(const std::vector<EvalRow>& rows, const TaskRun& run,
             const std::function<Status(const nlohmann::ordered_json&)>& keep) {
    std::int64_t n_problems = 0;
    for (const Task& task : tasks_) n_problems += std::ssize(task.problems);
    Progress progress("solving", n_problems * std::ssize(rows), "problems");
    for (const EvalRow& row : rows) {
      for (const Task& task : tasks_) {
        KVANT_RETURN_IF_ERROR(solve(row, task, progress));
        KVANT_RETURN_IF_ERROR(keep(tasks_to_json(run, rows_to_keep())));
      }
    }
    return {};
  }
  const std::vector<TaskRow>& done() const { return done_; }

 private:
  // Returns the rows of this run, and the rows of the earlier run that this run has not reached or does not
  // name.
  std::vector<TaskRow> rows_to_keep() const {
    std::vector<TaskRow> rows = done_;
    for (const TaskRow& row : earlier_) {
      const bool is_done = std::ranges::any_of(done_, [&](const TaskRow& other) {
        return is_row_of(other, row.recipe, row.label, row.task, row.depth);
      });
      if (!is_done) rows.push_back(row);
    }
    return rows;
  }

  Status solve(const EvalRow& row, const Task& task, Progress& progress) {
    const auto plan = session_.plan(row.recipe, row.calibration_text);
    if (!plan.ok()) return plan.error();
    // The plan has the name of the recipe that is served. The control row keeps its own name.
    const std::string name = row.name == label(row.recipe) ? (*plan)->name : row.name;
    const nlohmann::ordered_json plan_json = plan_to_json(session_.report(**plan));
    const auto known = std::ranges::find_if(earlier_, [&](const TaskRow& other) {
      return is_row_of(other, name, row.label, task.name, task.depth);
    });
    if (known != earlier_.end()) {
      if (known->plan != plan_json) {
        return error(
            "{} had another plan in the earlier result, such as another calibration or backend: leave out "
            "--resume, or name another file with --json",
            name);
      }
      done_.push_back(*known);
      progress.advance(std::ssize(task.problems));
      return {};
    }
    const auto parallel =
        parallel_sequences(session_, *plan, longest_sequence(task), row.step_tokens, options_.parallel);
    if (!parallel.ok()) return parallel.error();
    auto solved = evaluate_task(
        session_.engine(), session_.backend(), *plan, task,
        {.parallel = *parallel, .step_tokens = row.step_tokens, .n_threads = session_.options().n_threads},
        session_.options().n_threads, [&] { progress.advance(1); });
    if (!solved.ok()) return error("{}: {}", name, solved.error().message);
    solved->recipe = name;
    solved->label = row.label;
    solved->plan = plan_json;
    done_.push_back(std::move(solved).value());
    return {};
  }

  const TaskSetOptions& options_;
  const Session& session_;
  const std::vector<Task>& tasks_;
  std::vector<TaskRow> earlier_, done_;
};

Result<std::vector<EvalRow>> rows_of_tasks(const TaskSetOptions& options) {
  std::vector<SuiteRow> recipes;
  for (const std::string& recipe : options.recipes) recipes.push_back({"", recipe});
  auto rows = parse_eval_rows(options.reference.empty() ? "bf16" : options.reference, recipes,
                              QualityOptions{}.step_tokens);
  if (!rows.ok()) return rows.error();
  if (options.control) rows->push_back(control_row());
  for (const EvalRow& row : *rows) {
    if (names_llama(row.name))
      return error("--tasks supports kvant's recipes only: leave '{}' out of --kv", row.name);
  }
  return rows;
}

// Returns the text that comes before tool calls, or nothing if no depth needs one.
Result<std::string> text_before(const TaskSetOptions& options) {
  if (std::ranges::none_of(options.depths, [](int depth) { return depth > 0; })) return std::string();
  if (options.text_file.empty()) return error("--depths needs a text to put before the problems: add -f");
  return read_text_file(options.text_file);
}

// Adds the rows of an earlier result that `rows` lacks, judged again. Rows of tasks that are not in `tasks`
// are left out.
Status add_judged(std::vector<TaskRow> earlier, const std::vector<Task>& tasks, int judges,
                  std::vector<TaskRow>& rows) {
  for (TaskRow& row : earlier) {
    const auto task = std::ranges::find_if(
        tasks, [&](const Task& t) { return t.name == row.task && t.depth == row.depth; });
    const bool is_known = std::ranges::any_of(rows, [&](const TaskRow& other) {
      return is_row_of(other, row.recipe, row.label, row.task, row.depth);
    });
    if (task == tasks.end() || is_known) continue;
    KVANT_RETURN_IF_ERROR(check_problems(row, *task));
    KVANT_RETURN_IF_ERROR(judge_row(*task, judges, row));
    rows.push_back(std::move(row));
  }
  return {};
}

// Returns an error if rows of an earlier result cannot be compared with rows that this run makes.
Status check_earlier(const std::vector<TaskRow>& earlier, const std::vector<Task>& tasks) {
  for (const TaskRow& row : earlier) {
    for (const Task& task : tasks) {
      if (task.name != row.task || task.depth != row.depth) continue;
      if (const Status same = check_problems(row, task); !same.ok())
        return error("{}, or name another file with --json", same.error().message);
    }
  }
  return {};
}

}  // namespace

Status check_task_name(const std::string& name) {
  if (find_task_set(name) != std::end(kTaskSets)) return {};
  std::string names;
  for (const TaskSet& known : kTaskSets) names += std::string(names.empty() ? "" : ", ") + known.name;
  return error("there is no task '{}'; the tasks are {}", name, names);
}

std::string task_set_list() {
  std::string text;
  for (const TaskSet& set : kTaskSets)
    text += fmt::format("  {:<14} {} ({})\n", set.name, set.summary, set.problems);
  return text;
}

Status run_task_sets(const TaskSetOptions& options,
                     const std::function<Status(const nlohmann::ordered_json&)>& keep,
                     const std::function<void(const std::string&)>& show) {
  const auto parsed = rows_of_tasks(options);
  if (!parsed.ok()) return parsed.error();
  const auto data = read_task_data(options);
  if (!data.ok()) return data.error();
  const auto text = text_before(options);
  if (!text.ok()) return text.error();
  const TaskRun run{options.session.model, options.weights_name, options.session.device, options.parallel};
  std::vector<TaskRow> earlier;
  if (!options.earlier.empty()) {
    auto rows = tasks_from_json(options.earlier, run);
    if (!rows.ok())
      return error("{}: leave out --resume, or name another file with --json", rows.error().message);
    earlier = std::move(rows).value();
  }
  const auto session = Session::open(options.session, options.weights, /*context=*/0);
  if (!session.ok()) return session.error();
  const Engine& engine = session->engine();
  const auto tasks = make_tasks(options, engine.tokenizer(), *data, *text);
  if (!tasks.ok()) return tasks.error();
  KVANT_RETURN_IF_ERROR(check_earlier(earlier, *tasks));
  int longest = 0;
  for (const Task& task : *tasks) longest = std::max(longest, longest_sequence(task));
  warn_beyond_training(engine.geometry(), longest);
  TaskSetRun task_run(options, *session, *tasks, std::move(earlier));
  KVANT_RETURN_IF_ERROR(
      task_run.run(calibrated_on(*parsed, options.calibrate_on, engine.geometry()), run, keep));
  show(tasks_table(task_run.done()));
  return {};
}

Status judge_task_sets(const TaskSetOptions& options,
                       const std::function<Status(const nlohmann::ordered_json&)>& keep,
                       const std::function<void(const std::string&)>& show) {
  const auto data = read_task_data(options);
  if (!data.ok()) return data.error();
  const auto text = text_before(options);
  if (!text.ok()) return text.error();
  const auto session = Session::open(options.session, WeightMode::as_stored, /*context=*/0);
  if (!session.ok()) return session.error();
  const auto tasks = make_tasks(options, session->engine().tokenizer(), *data, *text);
  if (!tasks.ok()) return tasks.error();
  std::optional<TaskRun> run;
  std::vector<TaskRow> rows;
  for (const std::string& file : options.judged_files) {
    const auto json = read_text_file(file);
    if (!json.ok()) return json.error();
    if (!run) {
      const auto first = tasks_from_json(*json);
      if (!first.ok()) return error("{}: {}", file, first.error().message);
      run = first->run;
    }
    auto earlier = tasks_from_json(*json, *run);
    if (!earlier.ok()) return error("{}: {}", file, earlier.error().message);
    KVANT_RETURN_IF_ERROR(add_judged(std::move(*earlier), *tasks, session->options().n_threads, rows));
  }
  KVANT_RETURN_IF_ERROR(keep(tasks_to_json(*run, rows)));
  show(tasks_table(rows));
  return {};
}

}  // namespace kvant
