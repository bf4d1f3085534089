#include "eval/limits/records.h"

#include <fmt/format.h>

#include <array>
#include <random>

namespace kvant {
namespace {

constexpr std::array<const char*, 8> kNames = {"Amelia", "Bruno",  "Clara",  "Dmitri",
                                               "Esther", "Hamish", "Ingrid", "Keiko"};
constexpr std::array<const char*, 8> kGoods = {"lamp",   "rope",   "kettle", "ladder",
                                               "carpet", "mirror", "anvil",  "basket"};

// The class draws from raw random bits because the distributions of <random> differ between standard
// libraries.
class RecordDraw {
 public:
  explicit RecordDraw(std::uint64_t seed) : random_(seed) {}
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  int number(int digits_from, int digits_to) { return digits_from + below(digits_to - digits_from); }
  template <std::size_t N>
  const char* one_of(const std::array<const char*, N>& words) {
    return words[below(static_cast<int>(N))];
  }

 private:
  std::mt19937_64 random_;
};

Record order(RecordDraw& draw) {
  const int number = draw.number(10000, 100000);
  const int first = draw.below(static_cast<int>(kGoods.size()));
  const char* second = kGoods[(first + 1 + draw.below(static_cast<int>(kGoods.size()) - 1)) % kGoods.size()];
  const std::string cue = fmt::format(R"({{"order": {},)", number);
  const std::string json = fmt::format(
      R"({} "customer": "{}", "items": ["{}", "{}"], "total": {}, "paid": {}}})", cue, draw.one_of(kNames),
      kGoods[first], second, draw.number(10, 1000), draw.below(2) == 0 ? "false" : "true");
  return {0, fmt::format("The record of order {} is {}.", number, json),
          fmt::format("Repeat the record of order {} as JSON.", number), cue, json};
}

Record tool_call(RecordDraw& draw) {
  const int room = draw.number(100, 1000);
  const std::string cue = R"({"tool": "book_room",)";
  const std::string json =
      fmt::format(R"({} "arguments": {{"room": {}, "guest": "{}", "nights": {}, "breakfast": {}}}}})", cue,
                  room, draw.one_of(kNames), draw.number(2, 10), draw.below(2) == 0 ? "false" : "true");
  return {0.5, fmt::format("The call that books room {} is {}.", room, json),
          fmt::format("Repeat the call that books room {} as JSON.", room), cue, json};
}

}  // namespace

std::vector<Record> draw_records(std::uint64_t seed) {
  RecordDraw draw(seed);
  return {order(draw), tool_call(draw)};
}

std::size_t json_object_end(const std::string& text) {
  if (text.empty() || text.front() != '{') return std::string::npos;
  int open = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++open;
    } else if (c == '}' && --open == 0) {
      return i + 1;
    }
  }
  return std::string::npos;
}

}  // namespace kvant
