#include "eval/tasks/human_eval.h"

#include <fmt/format.h>

#include <random>

#include "base/json_reader.h"
#include "eval/tasks/sandbox.h"

namespace kvant {
namespace {

constexpr const char* kProblemFields[] = {"task_id", "prompt", "entry_point", "test"};

// Runs the imports, definitions and assignments of a completion, as EvalPlus does. Models often add tests of
// their own to a program. A wrong test of the model's says nothing about the function, so the program leaves
// out all other statements, and assignments that fail.
constexpr const char* kRunDefinitions = R"(
def _run_definitions(source):
    import ast
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    for node in ast.parse(source).body:
        if isinstance(node, kept):
            try:
                exec(compile(ast.Module([node], []), 'completion', 'exec'), globals())
            except Exception:
                pass
)";

// Returns the text as a literal of Python. JSON writes strings as Python does. Bytes that are not UTF-8 are
// replaced.
std::string python_literal(const std::string& text) {
  return nlohmann::ordered_json(text).dump(-1, ' ', /*ensure_ascii=*/false,
                                           nlohmann::ordered_json::error_handler_t::replace);
}

ChatHistory human_eval_chat(const std::string& problem) {
  ChatHistory history;
  history.add(
      "user",
      fmt::format("Please provide a self-contained Python script that solves the following problem in "
                  "a markdown code block:\n```\n{}\n```\n",
                  problem.substr(0, problem.find_last_not_of(" \t\n") + 1)));
  history.add("assistant",
              "Below is a Python script with a self-contained function that solves the problem and passes "
              "corresponding tests:\n```python\n");
  return history;
}

}  // namespace

// A program that ends early must not count as right. Its last line therefore prints a random
// word.
Result<bool> passes_tests(const nlohmann::ordered_json& record, const std::string& completion) {
  std::random_device random;
  const std::string passed = fmt::format("passed {:08x}{:08x}", random(), random());
  const std::string program =
      fmt::format("{}\n{}\n_run_definitions({})\n{}\ncheck({})\nprint('\\n{}')\n",
                  *text_member(record, "prompt"), kRunDefinitions, python_literal(completion),
                  *text_member(record, "test"), *text_member(record, "entry_point"), passed);
  if (program.size() > kMostProgramBytes) return false;
  const auto run = run_sandboxed_python(program);
  if (!run.ok()) return run.error();
  return run->succeeded && run->output.ends_with("\n" + passed + "\n");
}

Result<Task> make_human_eval(const ChatTemplate& chat_template, const std::string& text, int most,
                             int max_tokens) {
  if (const auto run = run_sandboxed_python("pass"); !run.ok()) return run.error();
  auto records = parse_json_lines(text, "humaneval", most);
  if (!records.ok()) return records.error();
  Task task{.name = "humaneval"};
  for (nlohmann::ordered_json& record : *records) {
    for (const char* field : kProblemFields) {
      if (!text_member(record, field))
        return error("problem {} of humaneval lacks a text \"{}\"", task.problems.size(), field);
    }
    auto prompt = chat_prompt(chat_template, human_eval_chat(*text_member(record, "prompt")),
                              {.max_tokens = max_tokens, .stops = {"\n```"}});
    if (!prompt.ok()) return prompt.error();
    const std::string id = *text_member(record, "task_id");
    task.problems.push_back(
        {id, std::move(prompt).value(), [record = std::move(record)](const std::string& completion) {
           const auto passes = passes_tests(record, completion);
           return passes.ok() ? TaskScore{.is_right = *passes} : TaskScore{.fault = passes.error().message};
         }});
  }
  return task;
}

}  // namespace kvant
