// kvant compare prints which differences between two result files exceed the noise.
#include "base/json_file.h"
#include "base/json_reader.h"
#include "base/text_file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "eval/comparison.h"
#include "eval/report_json.h"

namespace kvant {
namespace {

struct CompareOptions {
  std::string before, after;
  // An empty path writes no JSON.
  std::string json;
};

Result<nlohmann::ordered_json> read_result(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text.ok()) return text.error();
  auto json = parse_json(*text);
  if (!json.ok()) return error("'{}' is {}; give a file that --json has written", path, json.error().message);
  return json;
}

Status compare(const CompareOptions& options) {
  const auto before = read_result(options.before);
  if (!before.ok()) return before.error();
  const auto after = read_result(options.after);
  if (!after.ok()) return after.error();
  const auto comparison = compare_results(*before, *after);
  if (!comparison.ok())
    return error("'{}' and '{}': {}", options.before, options.after, comparison.error().message);
  fmt::print("{}", comparison_table(*comparison));
  if (options.json.empty()) return {};
  return write_whole_file(options.json, json_text(comparison_to_json(*comparison)));
}

}  // namespace

Command add_compare_command(CLI::App& program) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command =
      program.add_subcommand("compare", "show which differences between two results exceed the noise");
  command->add_option("before", options->before, "first result file, written by eval or bench with --json")
      ->required();
  command->add_option("after", options->after, "second result file, for example of a later version")
      ->required();
  command->add_option("--json", options->json, "write the comparison to this file as JSON");
  return {command, [options] { return compare(*options); }};
}

}  // namespace kvant
