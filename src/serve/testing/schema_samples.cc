// Draws random texts from the grammars of JSON schemas, for held_schema_test.py. The program reads one
// request per line, {"schema": ..., "texts": number, "seed": number, "advice": boolean}. For each request it
// prints a line {"texts": [...]}, or {"error": ...} if the schema is refused. With advice, "loosened" names
// the demands that the grammar does not enforce.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "base/json_reader.h"
#include "model/grammar_rules.h"
#include "serve/held_schema.h"
#include "serve/json_schema.h"

namespace {

using Json = nlohmann::ordered_json;

class TextSource {
 public:
  TextSource(const kvant::GrammarTable& table, std::uint64_t seed)
      : table_(table), random_(seed), costs_(table.rules.size(), kEndless) {
    for (bool changes = true; changes;) {
      changes = false;
      for (std::size_t rule = 0; rule < table.rules.size(); ++rule) {
        for (const kvant::GrammarSequence& sequence : table.rules[rule]) {
          const std::int64_t cost = cost_of(sequence);
          changes = changes || cost < costs_[rule];
          costs_[rule] = std::min(costs_[rule], cost);
        }
      }
    }
  }

  bool ends() const { return costs_[table_.root] < kEndless; }

  // Draws a text of any length. A text that has grown long takes the shortest path to its end.
  std::u32string draw() {
    text_.clear();
    longest_ = std::uniform_int_distribution<std::size_t>(4, 160)(random_);
    write(table_.root, 0);
    return text_;
  }

 private:
  static constexpr std::int64_t kEndless = std::int64_t{1} << 40;

  std::int64_t cost_of(const kvant::GrammarSequence& sequence) const {
    std::int64_t cost = 1;
    for (const kvant::GrammarSymbol symbol : sequence)
      cost = std::min(cost + (symbol < 0 ? 1 : costs_[symbol]), kEndless);
    return cost;
  }

  void write(int rule, int depth) {
    const auto& alternatives = table_.rules[rule];
    const kvant::GrammarSequence* chosen =
        &alternatives[std::uniform_int_distribution<std::size_t>(0, alternatives.size() - 1)(random_)];
    if (depth > 200 || text_.size() > longest_ || cost_of(*chosen) >= kEndless)
      chosen = &*std::ranges::min_element(alternatives, {}, [&](const auto& one) { return cost_of(one); });
    for (const kvant::GrammarSymbol symbol : *chosen) {
      if (symbol < 0) {
        text_ += character(table_.terminals[~symbol]);
      } else {
        write(symbol, depth + 1);
      }
    }
  }

  char32_t character(const kvant::GrammarTerminal& terminal) {
    const auto is_in = [&](char32_t c) {
      return std::ranges::any_of(terminal.ranges,
                                 [c](const auto& range) { return range.first <= c && c <= range.second; });
    };
    const auto pick = [&](std::uint32_t low, std::uint32_t high) {
      return static_cast<char32_t>(std::uniform_int_distribution<std::uint32_t>(low, high)(random_));
    };
    if (terminal.kind == kvant::GrammarTerminal::Kind::set) {
      const auto& [low, high] = terminal.ranges[pick(0, terminal.ranges.size() - 1)];
      const std::uint32_t end = pick(0, 3);
      return end == 0 ? low : end == 1 ? high : pick(low, pick(0, 3) == 0 ? high : std::min(high, low + 60));
    }
    // Characters that need escapes, or that have a meaning in JSON, are more likely than others.
    constexpr std::u32string_view kRisky =
        U"\"\\\n\r\t{}[]:,-.eE+/bfnrtu0123456789aZ \u0001\u007f\u00e9\u2028\U0001F600";
    for (int tries = 0; tries < 200; ++tries) {
      const char32_t c = pick(0, 3) == 0 ? pick(0x20, 0x17F) : kRisky[pick(0, kRisky.size() - 1)];
      if (terminal.kind == kvant::GrammarTerminal::Kind::any || !is_in(c)) return c;
    }
    return U'?';
  }

  const kvant::GrammarTable& table_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> costs_;  // costs_[rule] is the cost of the shortest text of the rule
  std::u32string text_;
  std::size_t longest_ = 0;
};

std::string utf8(const std::u32string& text) {
  std::string bytes;
  const auto add = [&bytes](std::uint32_t byte) { bytes += static_cast<char>(byte); };
  for (const char32_t c : text) {
    const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr std::array<std::uint32_t, 4> kFirst = {0, 0xC0, 0xE0, 0xF0};
    add(kFirst[more] | (c >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) add(0x80 | ((c >> (6 * i)) & 0x3F));
  }
  return bytes;
}

Json answer(const Json& request) {
  const bool is_advice = request.value("advice", false);
  kvant::SchemaCost cost;
  auto held =
      kvant::hold_schema(request.at("schema"), "schema",
                         is_advice ? kvant::SchemaUse::advice : kvant::SchemaUse::exact, "part-", cost);
  if (!held.ok()) return {{"error", held.error().message}};
  Json out = {{"loosened", held->loosened}};
  const auto gbnf = kvant::held_schema_grammar(std::move(held->schema), "schema");
  if (!gbnf.ok()) return {{"error", gbnf.error().message}, {"grammar", ""}};
  const auto table = kvant::read_grammar(*gbnf);
  if (!table.ok()) return {{"error", table.error().message}, {"grammar", *gbnf}};
  TextSource source(*table, request.value("seed", 0));
  if (!source.ends()) return {{"error", "no text of the grammar ends"}, {"grammar", *gbnf}};
  out["texts"] = Json::array();
  for (int i = 0; i < request.value("texts", 10); ++i) out["texts"].push_back(utf8(source.draw()));
  return out;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = kvant::parse_json(line);
    if (!request.ok()) {
      fmt::print("{}\n", Json{{"error", request.error().message}}.dump());
      continue;
    }
    fmt::print("{}\n", answer(*request).dump(-1, ' ', true, Json::error_handler_t::replace));
  }
}
