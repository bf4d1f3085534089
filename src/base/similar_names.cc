#include "base/similar_names.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

namespace kvant {
namespace {

// Longer names get no suggestions. The time of a comparison grows with the product of both lengths, and no
// known name is this long.
constexpr std::size_t kLongestName = 64;

bool same_letter(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// Computes Levenshtein's distance, in which insertions, deletions and replacements cost 1.
int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> similar_names(const std::string& name, std::span<const std::string> known, int n) {
  if (name.empty() || name.size() > kLongestName) return {};
  std::vector<std::pair<int, const std::string*>> near;
  for (const std::string& candidate : known) {
    const int distance = edit_distance(name, candidate);
    const int limit = static_cast<int>(std::max(name.size(), candidate.size()) + 1) / 2;
    if (distance <= limit) near.emplace_back(distance, &candidate);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& entry : near) {
    if (static_cast<int>(names.size()) == n) break;
    names.push_back(*entry.second);
  }
  return names;
}

}  // namespace kvant
