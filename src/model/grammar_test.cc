#include "model/grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <chrono>
#include <cmath>
#include <map>

#include "model/sampler.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

constexpr std::int32_t kEndOfText = 2;

class GrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto file = write_tiny_model({.n_layers = 1});
    tokenizer_ = Tokenizer::load(file->path()).value().release();
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  static std::unique_ptr<Grammar> grammar(const GrammarRules& rules) {
    return Grammar::make(rules, *tokenizer_).value();
  }
  // Returns the token for a letter.
  static std::int32_t letter(char c) { return 3 + 256 + 1 + (c - 'a'); }
  static void accept(Grammar& grammar, const std::string& letters) {
    for (const char c : letters) ASSERT_TRUE(grammar.accept(letter(c)).ok()) << c;
  }

  static Tokenizer* tokenizer_;
};
Tokenizer* GrammarTest::tokenizer_ = nullptr;

TEST_F(GrammarTest, AllowsWhatTheRulesDo) {
  const auto rules = grammar({R"(root ::= "ab" [cd]+)"});
  EXPECT_TRUE(rules->allows(letter('a')));
  EXPECT_FALSE(rules->allows(letter('b')));
  EXPECT_FALSE(rules->allows(kEndOfText));
  accept(*rules, "abc");
  EXPECT_TRUE(rules->allows(letter('d')));
  EXPECT_TRUE(rules->allows(kEndOfText));
  EXPECT_FALSE(rules->allows(letter('a')));
  EXPECT_FALSE(rules->accept(letter('a')).ok());
}

TEST_F(GrammarTest, AClonesWayIsItsOwn) {
  const auto rules = grammar({R"(root ::= "ab" | "ac")"});
  accept(*rules, "a");
  const auto clone = rules->clone();
  accept(*clone, "b");
  EXPECT_TRUE(rules->allows(letter('c')));
  EXPECT_FALSE(clone->allows(letter('c')));
}

TEST_F(GrammarTest, HoldsFromItsTriggerOnWhereItHasOne) {
  const auto rules = grammar({.gbnf = R"(root ::= "go" [xy])", .trigger = {.words = {"go"}}});
  accept(*rules, "zebragab");
  EXPECT_TRUE(rules->allows(kEndOfText));
  accept(*rules, "go");
  EXPECT_TRUE(rules->allows(letter('x')));
  EXPECT_FALSE(rules->allows(letter('z')));
  EXPECT_FALSE(rules->allows(kEndOfText));
}

TEST_F(GrammarTest, RefusesRulesThatCanNotBeUsed) {
  const std::string deep = "root ::= " + std::string(10000, '(') + "\"a\"" + std::string(10000, ')');
  for (const std::string& gbnf : {std::string("root ::= \"a"), std::string("a ::= \"a\""),
                                  std::string("root ::= other"), std::string("root ::= root \"a\""), deep,
                                  std::string("root ::= \"a\"{100000}"), std::string(1 << 20, ' ')}) {
    const auto made = Grammar::make({gbnf}, *tokenizer_);
    ASSERT_FALSE(made.ok()) << gbnf.substr(0, 60);
    EXPECT_FALSE(made.error().message.empty());
  }
  EXPECT_TRUE(Grammar::make({"root ::= \"((((\" [(((] # (((("}, *tokenizer_).ok());
}

// With these rules, a grammar without bounds would take all memory or never return.
TEST_F(GrammarTest, RefusesRulesThatWouldStopTheServer) {
  std::string doubled = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) doubled += fmt::format("r{} ::= r{} | r{}\n", i, i + 1, i + 1);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& gbnf :
       {std::string("root ::= \"a\"{3,2}"), doubled + "r40 ::= \"a\"",
        std::string("root ::= c\nc ::= a c \"x\" | \"y\"\na ::= b b\nb ::= \"z\" |"),
        "root ::= \"" + std::string(200'000, 'a') + "\"{0,2000}",
        std::string(200'000, 'a') + " ::= \"a\"{0,2000}\nroot ::= \"a\"",
        std::string("root ::= x\nx ::= \" \" x | \" \" x | \"a\"")}) {
    const auto made = Grammar::make({gbnf}, *tokenizer_);
    ASSERT_FALSE(made.ok()) << gbnf.substr(0, 60);
    EXPECT_LT(made.error().message.size(), 300U);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(GrammarTest, TakesRulesUpToTheBounds) {
  std::string chain = "root ::= r0\n", words = "root ::= (\"w0\"";
  for (int i = 0; i < 4000; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
  for (int i = 1; i < 2000; ++i) words += fmt::format(" | \"w{}\"", i);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& gbnf :
       {chain + "r4000 ::= \"a\"", words + ")*", std::string("root ::= \"abcdef\"{0,2000}"),
        std::string("root ::= (\"a\"?){0,700}")}) {
    const auto made = Grammar::make({gbnf}, *tokenizer_);
    ASSERT_TRUE(made.ok()) << gbnf.substr(0, 60) << made.error().message;
    EXPECT_TRUE((*made)->clone() != nullptr);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// The repeated parts may be empty. Rules with such parts begin with themselves, but the repetition leads to
// nothing new.
TEST_F(GrammarTest, RepeatsWhatMayBeEmpty) {
  const auto rules = grammar({R"(root ::= ("a"* ("b"? "c"?)*)* "d")"});
  accept(*rules, "abcba");
  EXPECT_TRUE(rules->allows(letter('d')));
  EXPECT_FALSE(rules->allows(kEndOfText));
  accept(*rules, "d");
  EXPECT_TRUE(rules->allows(kEndOfText));
}

// The expected shares come from the distribution that the logits give to the allowed tokens.
TEST_F(GrammarTest, SamplersDrawAmongWhatIsAllowedInProportion) {
  std::vector<float> logits(TinyModelWriter::kVocabulary, -2.0F);
  logits[letter('a')] = std::log(1.0F);
  logits[letter('b')] = std::log(3.0F);
  logits[letter('z')] = std::log(40.0F);
  logits[3 + 'a'] = logits[3 + 'b'] = -40;  // the byte tokens of the same letters are unlikely
  const auto rules = grammar({R"(root ::= [ab])"});
  const auto sampler =
      Sampler::make({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 3}).value();
  std::map<std::int32_t, double> share;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) share[sampler->pick(logits, *rules)] += 1.0 / kDraws;
  EXPECT_EQ(share.size(), 2U);  // no other token may be drawn
  EXPECT_NEAR(share[letter('a')], 0.25, 0.03);
  EXPECT_NEAR(share[letter('b')], 0.75, 0.03);
}

TEST_F(GrammarTest, SamplersTakeTheLikeliestOfWhatIsAllowedAtTemperatureZero) {
  std::vector<float> logits(TinyModelWriter::kVocabulary, 0.0F);
  logits[letter('z')] = 9;
  logits[letter('b')] = 1;
  const auto sampler = Sampler::make({.temperature = 0}).value();
  EXPECT_EQ(sampler->pick(logits, *grammar({R"(root ::= [abc])"})), letter('b'));
  EXPECT_EQ(sampler->pick(logits, *grammar({R"(root ::= [xyz])"})), letter('z'));
}

TEST_F(GrammarTest, SamplersSayWhereNothingIsAllowed) {
  std::vector<float> logits(TinyModelWriter::kVocabulary, 0.0F);
  const auto sampler = Sampler::make({.temperature = 1}).value();
  const auto rules = grammar({R"(root ::= <[5000]>)"});  // the token does not exist
  EXPECT_EQ(sampler->pick(logits, *rules), -1);
}

}  // namespace
}  // namespace kvant
