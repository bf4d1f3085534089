#include "cli/option_errors.h"

#include <algorithm>
#include <string_view>

#include "base/similar_names.h"
#include "recipe/message_text.h"

namespace kvant {
namespace {

// Returns the innermost subcommand that the parser reached.
const CLI::App& innermost(const CLI::App& program) {
  const auto commands = program.get_subcommands();
  return commands.empty() ? program : innermost(*commands.front());
}

std::string path_of(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name()
                                         : path_of(*command.get_parent()) + " " + command.get_name();
}

std::string unknown_command(const CLI::App& program, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  const auto near = similar_names(word, names, 2);
  const std::string hint = near.empty() ? "; the commands are " + listed(names) : did_you_mean(near);
  return "there is no command " + quoted(word) + hint;
}

// Returns the options that start with `name` or resemble it. `name` has no dashes.
std::vector<std::string> similar_options(const CLI::App& command, const std::string& name) {
  constexpr std::size_t kShortestBeginning = 3;
  constexpr int kMost = 3;
  std::vector<std::string> all, found;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& long_name : option->get_lnames()) all.push_back(long_name);
  if (name.size() < kShortestBeginning) return {};
  for (const std::string& known : all) {
    if (known.size() >= kShortestBeginning && (known.starts_with(name) || name.starts_with(known)))
      found.push_back(known);
  }
  for (const std::string& known : similar_names(name, all, kMost)) {
    if (std::find(found.begin(), found.end(), known) == found.end()) found.push_back(known);
  }
  if (found.size() > kMost) found.resize(kMost);
  for (std::string& known : found) known.insert(0, "--");
  return found;
}

std::string unexpected_word(const CLI::App& command, const std::string& word) {
  if (!word.starts_with('-'))
    return quoted(word) + " belongs to no option" +
           (command.get_name() == "run" ? ": give the text of a prompt with -p" : "");
  const std::string option = word.substr(0, word.find('='));
  const std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  return "there is no option " + quoted(option) + did_you_mean(similar_options(command, name));
}

std::string unexpected(const CLI::App& command, const std::string& otherwise,
                       const std::vector<std::string>& words, const std::vector<std::string>& typed) {
  const auto left = command.remaining(/*recurse=*/true);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (std::find(left.begin(), left.end(), words[i]) != left.end())
      return unexpected_word(command, typed[i]);
  }
  return otherwise;
}

// Rewords messages of CLI11 that do not tell the user what to do.
std::string reworded(const CLI::App& command, const std::string& text) {
  constexpr std::string_view kConversion = "Could not convert: ", kEquals = " = ";
  const std::size_t equals = text.find(kEquals);
  if (text.starts_with(kConversion) && equals != std::string::npos) {
    return text.substr(kConversion.size(), equals - kConversion.size()) + ": " +
           quoted(text.substr(equals + kEquals.size())) + " is not a valid number";
  }
  constexpr std::string_view kRequired = " is required";
  if (!text.starts_with('-') && text.ends_with(kRequired)) {
    const CLI::Option* missing = command.get_option_no_throw(text.substr(0, text.size() - kRequired.size()));
    if (missing != nullptr) return missing->get_name() + " is missing: " + missing->get_description();
  }
  const std::size_t once = text.find(": At Most 1 required but received");
  return once == std::string::npos ? text : text.substr(0, once) + " is given more than once";
}

}  // namespace

std::string option_error(const CLI::App& program, const CLI::ParseError& wrong,
                         const std::vector<std::string>& words, const std::vector<std::string>& typed) {
  const CLI::App& command = innermost(program);
  const bool no_command = &command == &program && !words.empty() && !words.front().starts_with('-');
  std::string text = no_command ? unknown_command(program, words.front())
                     : dynamic_cast<const CLI::ExtrasError*>(&wrong) != nullptr
                         ? unexpected(command, wrong.what(), words, typed)
                         : reworded(command, wrong.what());
  return text + "; see " + path_of(command) + " --help";
}

}  // namespace kvant
