// kvant recipes lists the recipes and formats that --kv takes.
#include <cstdio>

#include "cli/command.h"
#include "cli/model_options.h"

namespace kvant {

Command add_recipes_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("recipes", "list all recipes and formats that --kv takes");
  return {command, []() -> Status {
            fmt::print("{}", recipe_list());
            return {};
          }};
}

}  // namespace kvant
