#include "model/grammar_bounds.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

// Returns what is wrong with the grammar, or an empty string if nothing is wrong.
std::string fault(const std::string& gbnf) {
  const auto table = read_grammar(gbnf);
  if (!table.ok()) return table.error().message;
  const Status status = check_bounds(*table);
  return status.ok() ? "" : status.error().message;
}

void expect_refused(const std::string& gbnf, const std::string& why) {
  const auto start = Clock::now();
  const std::string found = fault(gbnf);
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(500)) << gbnf.substr(0, 80);
  EXPECT_NE(found.find(why), std::string::npos) << gbnf.substr(0, 80) << ": " << found;
  EXPECT_LT(found.size(), 300U);
}

std::string repeated(int n, const std::string& text) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

// The expected table was derived by hand: S{1,3} becomes S and a rule for up to two more.
TEST(GrammarRules, WriteRepetitionsOut) {
  const auto table = read_grammar("root ::= \"ab\"{1,3} [b]? # a comment\n").value();
  ASSERT_EQ(table.rules.size(), 4U);
  const GrammarSymbol a = ~0, b = ~1;
  using Alternatives = std::vector<GrammarSequence>;
  EXPECT_EQ(table.rules[0], (Alternatives{{a, b, 2, 3}}));
  EXPECT_EQ(table.rules[1], (Alternatives{{a, b}, {}}));
  EXPECT_EQ(table.rules[2], (Alternatives{{a, b, 1}, {}}));
  EXPECT_EQ(table.rules[3], (Alternatives{{b}, {}}));
}

TEST(GrammarRules, ReadWhatGrammarsAreWrittenWith) {
  for (const char* gbnf : {"root ::= a | (\"x\"\n | [^\\]a-z-] .)+ a\na ::= \"\\x41\\u00e9\\\"\" \"b\"*",
                           "root ::=", "# none\n\nroot ::= <tool> !<[5]> <[7]>\r\nother ::= root{2,}",
                           "root ::= \"((((\" [(((] # (((("}) {
    EXPECT_EQ(fault(gbnf), "") << gbnf;
  }
}

TEST(GrammarRules, AreRefusedWhereTheyCanNotBeRead) {
  expect_refused("root ::= \"a", "ends in the middle");
  expect_refused("root ::= [a", "ends in the middle");
  expect_refused("root ::= <a", "ends in the middle");
  expect_refused("root ::= \"\\q\"", "escape");
  expect_refused("root ::= \"\\x4\"", "hexadecimal");
  expect_refused("root ::= *", "nothing to repeat");
  expect_refused("root ::= (\"a\"", "')'");
  expect_refused("root = \"a\"", "'::='");
  expect_refused("root ::= other", "no rule 'other'");
  expect_refused("a ::= \"a\"", "no rule 'root'");
  expect_refused(std::string("root ::= \"a\"\0\n", 14), "character 0");
  expect_refused("root ::= " + repeated(10000, "(") + "\"a\"" + repeated(10000, ")"), "nested");
}

TEST(GrammarRules, AreRefusedWhereCountsMakeNoSense) {
  expect_refused("root ::= \"a\"{3,2}", "at least 3 times and at most 2");
  expect_refused("root ::= \"a\"{0,2001}", "2000 times");
  expect_refused("root ::= \"a\"{18446744073709551617}", "2000 times");
  EXPECT_EQ(fault("root ::= \"a\"{0,2000}"), "");
}

TEST(GrammarRules, AreRefusedWhereRepetitionsMakeThemLarge) {
  expect_refused("root ::= \"" + repeated(200'000, "a") + "\"{2000}", "written out");
  expect_refused("root ::= \"" + repeated(1000, "a") + "\"{0,2000}", "written out");
  expect_refused("root ::= (\"" + repeated(20, "a") + "\"{2000}){2000} \"" + repeated(60, "a") + "\"{2000}",
                 "written out");
  expect_refused("root ::= \"a\"" + repeated(100'000, "+"), "written out");
  expect_refused(repeated(100'000, "a") + " ::= \"a\"{0,2000}", "names");
  EXPECT_EQ(fault("root ::= \"abcdefghij\"{0,2000}"), "");
}

TEST(GrammarBounds, RefuseRulesThatBeginWithThemselves) {
  expect_refused("root ::= root \"a\" | \"b\"", "'root' can begin with itself");
  expect_refused("root ::= a\na ::= root | \"b\"", "begin with itself");
  // The rule repeats only after parts that may be empty. One of the parts is empty only through another rule.
  expect_refused("root ::= c\nc ::= a c \"x\" | \"y\"\na ::= b b\nb ::= \"z\" |",
                 "'c' can begin with itself");
  expect_refused("root ::= | b root \"x\"\nb ::= | \"z\"", "begin with itself");
  expect_refused("root ::= | b other\nother ::= b root\nb ::= | \"z\"", "begin with itself");
  EXPECT_EQ(fault("root ::= (\"a\"*)*"), "");
  EXPECT_EQ(fault("root ::= c\nc ::= a c \"x\" | \"y\"\na ::= b b\nb ::= \"z\""), "");
  EXPECT_EQ(fault("root ::= \"a\" root | \"b\""), "");
}

TEST(GrammarBounds, RefuseRulesThatBeginInTooManyWays) {
  std::string doubled, deep = "root ::= r0\n",
                       empty = "root ::= \"x\" " + repeated(20'000, "a ") + "\na ::= \"y\" |";
  for (int i = 0; i < 40; ++i) doubled += fmt::format("r{} ::= r{} | r{}\n", i, i + 1, i + 1);
  doubled += "r40 ::= \"a\"\nroot ::= r0";
  expect_refused(doubled, "more than 4096 ways");
  for (int i = 0; i < 8000; ++i) deep += fmt::format("r{} ::= r{}\n", i, i + 1);
  expect_refused(deep + "r8000 ::= \"a\"", "begin with one another");
  expect_refused(empty, "more than 4096 ways");
  std::string words = "root ::= \"w0\"";
  for (int i = 1; i < 2000; ++i) words += fmt::format(" | \"w{}\"", i);
  EXPECT_EQ(fault(words), "");
}

TEST(GrammarBounds, RefuseTheSameAlternativeTwice) {
  expect_refused("root ::= x\nx ::= \" \" x | \" \" x | \"a\"", "'x' has the same alternative twice");
  expect_refused("root ::= (\" \" | [ ])*", "same alternative twice");
  // Schemas with several formats give such rules.
  EXPECT_EQ(fault("root ::= x | x\nx ::= \"a\" | \"b\""), "");
}

}  // namespace
}  // namespace kvant
