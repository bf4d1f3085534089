// Parses the command line of a benchmark: options with one value each, and names of what is timed. An
// argument that begins with "--" is an option, and every other argument is a name.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvant::cuda {

struct BenchCommand {
  std::vector<std::string> names;
  // Holds pairs (option, value) in the order of the command line.
  std::vector<std::pair<std::string, std::string>> options;
};

// Sets the numbers and texts of the given options. Ends the program with an error message if an option is
// unknown or lacks its value.
inline BenchCommand parse_bench(int argc, char** argv, const std::map<std::string, int*>& numbers,
                                const std::map<std::string, std::string*>& texts = {}) {
  BenchCommand command;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--")) {
      command.names.push_back(argument);
      continue;
    }
    const auto number = numbers.find(argument);
    const auto text = texts.find(argument);
    if ((number == numbers.end() && text == texts.end()) || ++i >= argc) {
      std::fprintf(stderr, "%s is no option of this bench, or lacks its value; there are", argument.c_str());
      for (const auto& [name, to] : numbers) std::fprintf(stderr, " %s", name.c_str());
      for (const auto& [name, to] : texts) std::fprintf(stderr, " %s", name.c_str());
      std::fprintf(stderr, "\n");
      std::exit(2);
    }
    if (number != numbers.end()) *number->second = std::atoi(argv[i]);
    if (text != texts.end()) *text->second = argv[i];
    command.options.emplace_back(argument, argv[i]);
  }
  return command;
}

}  // namespace kvant::cuda
