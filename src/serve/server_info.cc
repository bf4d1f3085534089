#include "serve/server_info.h"

#include <algorithm>

namespace kvant {

int recipe_of(std::span<const ServerInfo> served, const std::string& model) {
  if (model.empty()) return 0;
  const auto found = std::ranges::find_if(served, [&](const ServerInfo& info) {
    return info.model == model || std::ranges::find(info.aliases, model) != info.aliases.end();
  });
  if (found != served.end()) return static_cast<int>(found - served.begin());
  return served.front().any_model ? 0 : -1;
}

std::vector<std::string> names_of(const ServerInfo& info) {
  std::vector<std::string> names = {info.model};
  names.insert(names.end(), info.aliases.begin(), info.aliases.end());
  return names;
}

std::string answering_name(const ServerInfo& info, const std::string& model) {
  return std::ranges::find(info.aliases, model) == info.aliases.end() ? info.model : model;
}

}  // namespace kvant
