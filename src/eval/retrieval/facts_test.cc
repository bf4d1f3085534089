#include "eval/retrieval/facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace kvant {
namespace {

// Returns the facts in the order of the text.
std::vector<Fact> in_order(const FactSheet& sheet) {
  std::vector<Fact> facts = sheet.facts;
  std::stable_sort(facts.begin(), facts.end(),
                   [](const Fact& a, const Fact& b) { return a.depth < b.depth; });
  return facts;
}

const FactQuestion& question_of(const FactSheet& sheet, const std::string& task) {
  return *std::find_if(sheet.questions.begin(), sheet.questions.end(),
                       [&](const FactQuestion& question) { return question.task == task; });
}

TEST(Facts, AnswerEachNeedleAtItsDepth) {
  const FactSheet sheet = draw_facts(0.5, 7);
  std::multiset<double> depths;
  for (const FactQuestion& asked : sheet.questions) {
    if (asked.depth < 0) continue;
    depths.insert(asked.depth);
    const auto found = std::find_if(sheet.facts.begin(), sheet.facts.end(), [&](const Fact& fact) {
      return fact.sentence.starts_with(asked.cue + asked.answer + ".");
    });
    ASSERT_NE(found, sheet.facts.end()) << asked.cue << asked.answer;
    EXPECT_EQ(found->depth, asked.depth);
  }
  EXPECT_EQ(depths, (std::multiset<double>{0, 0.25, 0.5, 0.5, 0.75, 1}));
}

TEST(Facts, ChainsOfVariablesLeadToTheAnswer) {
  const FactSheet sheet = draw_facts(0, 3);
  const FactQuestion asked = question_of(sheet, "variables");
  // A reader finds these values in the order of the text.
  std::map<std::string, std::string> values;
  std::vector<std::string> order;
  for (const Fact& fact : in_order(sheet)) {
    if (!fact.sentence.starts_with("VAR ")) continue;
    const std::string name = fact.sentence.substr(4, 2), from = fact.sentence.substr(9);
    values[name] = from.starts_with("VAR ") ? values.at(from.substr(4, 2)) : from.substr(0, 5);
    order.push_back(name);
  }
  EXPECT_EQ(order.size(), 8U);
  const std::string value = asked.cue.substr(asked.cue.find_first_of("0123456789"), 5);
  std::string answer;
  for (const std::string& name : order) {
    if (values.at(name) == value) answer += (answer.empty() ? " " : ", ") + name;
  }
  EXPECT_EQ(asked.answer, answer);
}

TEST(Facts, TheMostFrequentNamesAreTheAnswer) {
  const FactSheet sheet = draw_facts(0, 5);
  std::map<std::string, int> votes;
  for (const Fact& fact : sheet.facts) {
    if (fact.sentence.starts_with("One vote for ")) ++votes[fact.sentence.substr(13)];
  }
  std::vector<std::pair<int, std::string>> ranked;
  for (const auto& [name, n] : votes) ranked.push_back({-n, name.substr(0, name.size() - 1)});
  std::sort(ranked.begin(), ranked.end());
  EXPECT_EQ(question_of(sheet, "frequent").answer,
            " " + ranked[0].second + ", " + ranked[1].second + ", " + ranked[2].second);
}

TEST(Facts, AreDrawnBySeed) {
  EXPECT_EQ(draw_facts(0, 1).facts[0].sentence, draw_facts(0, 1).facts[0].sentence);
  EXPECT_NE(draw_facts(0, 1).facts[0].sentence, draw_facts(0, 2).facts[0].sentence);
}

}  // namespace
}  // namespace kvant
