#include "serve/server_info.h"

#include <algorithm>

namespace kvant {

int recipe_of(std::span<const ServerInfo> served, const std::string& model) {
  if (model.empty()) return 0;
  const auto found = std::ranges::find(served, model, &ServerInfo::model);
  return found == served.end() ? -1 : static_cast<int>(found - served.begin());
}

}  // namespace kvant
