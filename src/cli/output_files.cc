#include "cli/output_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/calibration.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

// These options name files to write. All other options that take text may name files to read, except for
// kTexts.
constexpr std::string_view kOutputs[] = {"--json", "--output"};
constexpr std::string_view kTexts[] = {"--prompt", "--system"};

bool is_output(const CLI::Option& option) {
  return std::ranges::find(kOutputs, option.get_name()) != std::end(kOutputs);
}

bool may_name_files(const CLI::Option& option) {
  return option.get_type_name().starts_with("TEXT") &&
         std::ranges::find(kTexts, option.get_name()) == std::end(kTexts);
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code failure;
  if (fs::exists(a, failure) || fs::exists(b, failure)) return fs::equivalent(a, b, failure);
  return fs::weakly_canonical(a, failure) == fs::weakly_canonical(b, failure);
}

// Returns the files that a value may name: the value, and the items of a list. "-" is the standard input.
std::vector<std::string> files_in(const std::string& value) {
  if (value == "-") return {"/dev/stdin"};
  std::vector<std::string> files = {value};
  for (std::size_t begin = 0; begin < value.size();) {
    const std::size_t end = std::min(value.find_first_of(",;", begin), value.size());
    files.push_back(value.substr(begin, end - begin));
    begin = end + 1;
  }
  return files;
}

// An option for input may take the name of a recipe, so it names only files that exist.
bool names(const CLI::Option& option, const std::string& file) {
  std::error_code failure;
  if (!is_output(option) && !fs::exists(file, failure)) return false;
  for (const std::string& value : option.results()) {
    const auto files = files_in(value);
    if (std::ranges::any_of(files, [&](const std::string& f) { return is_same_file(f, file); })) return true;
  }
  return false;
}

bool is_gguf(const std::string& file) {
  std::array<char, 4> start{};
  std::ifstream(file, std::ios::binary).read(start.data(), start.size());
  return std::string_view(start.data(), start.size()) == "GGUF";
}

Status check_output(const CLI::App& command, const CLI::Option& output, const std::string& file) {
  for (const CLI::Option* other : command.get_options()) {
    if (other == &output || !may_name_files(*other) || !names(*other, file)) continue;
    return error("{} '{}' is also the file of {}, which the result would replace: name another file",
                 output.get_name(), file, other->get_name());
  }
  std::error_code failure;
  if (!fs::is_regular_file(file, failure) || !is_gguf(file)) return {};
  const bool makes_calibrations = command.get_name() == "calibrate" && output.get_name() == "--output";
  if (makes_calibrations && is_calibration(file)) return {};
  return error("{} '{}' is a GGUF file{}, which the result would replace: name another file",
               output.get_name(), file, makes_calibrations ? ", but not a calibration" : "");
}

}  // namespace

Status check_output_files(const CLI::App& command) {
  for (const CLI::App* inner : command.get_subcommands()) KVANT_RETURN_IF_ERROR(check_output_files(*inner));
  for (const CLI::Option* option : command.get_options()) {
    if (!is_output(*option)) continue;
    for (const std::string& file : option->results())
      KVANT_RETURN_IF_ERROR(check_output(command, *option, file));
  }
  return {};
}

}  // namespace kvant
