// Compares the matcher with llama.cpp's own grammars, token by token.
#include "model/grammar_matcher.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <cmath>
#include <random>

#include "model/grammar.h"
#include "model/grammar_vocabulary.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

class GrammarsBesideTheLibrary : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    const auto file = write_tiny_model({.n_layers = 1});
    tokenizer_ = Tokenizer::load(file->path()).value().release();
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  template <class Mask>
  static std::vector<bool> allowed(const Mask& mask) {
    std::vector<llama_token_data> tokens;
    for (int i = 0; i < TinyModelWriter::kVocabulary; ++i) tokens.push_back({i, 0.0F, 0.0F});
    llama_token_data_array all{tokens.data(), tokens.size(), -1, false};
    mask(all);
    std::vector<bool> allowed;
    for (const llama_token_data& token : tokens) allowed.push_back(!std::isinf(token.logit));
    return allowed;
  }

  // Returns whether the token is a byte of a longer character. For such tokens the test does not compare with
  // llama.cpp. llama.cpp accepts bytes that are not UTF-8, and refuses some bytes that could become an
  // allowed character.
  static bool is_part_of_character(int token) {
    const std::string text = tokenizer_->piece(token);
    return text.size() == 1 && static_cast<unsigned char>(text[0]) >= 0x80;
  }

  static Tokenizer* tokenizer_;
};
Tokenizer* GrammarsBesideTheLibrary::tokenizer_ = nullptr;

TEST_P(GrammarsBesideTheLibrary, AllowTheSameTokens) {
  const auto* vocabulary = llama_model_get_vocab(tokenizer_->library_model());
  std::mt19937 random(3);
  for (int text = 0; text < 12; ++text) {
    const auto ours = Grammar::make({GetParam()}, *tokenizer_);
    ASSERT_TRUE(ours.ok()) << ours.error().message;
    llama_sampler* theirs = llama_sampler_init_grammar(vocabulary, GetParam(), "root");
    ASSERT_NE(theirs, nullptr);
    for (int step = 0; step < 25; ++step) {
      const auto found = allowed([&](auto& all) { (*ours)->mask(all); });
      const auto expected = allowed([&](auto& all) { llama_sampler_apply(theirs, &all); });
      for (int i = 0; i < TinyModelWriter::kVocabulary; ++i) {
        if (is_part_of_character(i)) continue;
        EXPECT_EQ(found[i], expected[i]) << text << ", " << step << ": " << i;
      }
      std::vector<llama_token> next;
      for (int i = 0; i < TinyModelWriter::kVocabulary; ++i) {
        EXPECT_EQ((*ours)->allows(i), found[i]);
        if (found[i] && expected[i] && !llama_vocab_is_eog(vocabulary, i)) next.push_back(i);
      }
      if (next.empty()) break;
      const llama_token token = next[random() % next.size()];
      ASSERT_TRUE((*ours)->accept(token).ok());
      llama_sampler_accept(theirs, token);
    }
    llama_sampler_free(theirs);
  }
}

constexpr const char* kJson = R"g(root ::= object
object ::= "{" ws (member ("," ws member)*)? "}" ws
member ::= string ":" ws value
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
value ::= object | array | string | number | ("true" | "false" | "null") ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20})g";
constexpr const char* kNested = R"g(root ::= s
s ::= "a" s "b" | "(" s ")" | "c"?)g";

INSTANTIATE_TEST_SUITE_P(Rules, GrammarsBesideTheLibrary,
                         ::testing::Values(kJson, kNested, R"g(root ::= "ab" [cd]+)g",
                                           R"g(root ::= ("a"* ("b"? "c"?)*)* "d")g", R"g(root ::= .*)g",
                                           R"g(root ::= [^a-z]* "ende")g",
                                           R"g(root ::= [à-ü]{2,4} ("日本" | "日本語") "😀"?)g",
                                           R"g(root ::= [^é]{3} [Ā-߿]* "x")g",
                                           R"g(root ::= "\u00e9" [^\x00-\x7f] "\U0001F600")g",
                                           R"g(root ::= ("a" | "ab" | "abc"){2,5} [b-d]?)g",
                                           R"g(root ::= <[258]> "a" !<[259]>* "b")g",
                                           R"g(root ::= "w1" | "w2" | "w" [0-9]{3})g"));

// The expected bytes of characters come from RFC 3629.
TEST(GrammarMatchers, TakeCharactersByteByByte) {
  const auto takes = [](const char* rules, std::string_view text) {
    GrammarMatcher matcher(std::make_shared<const GrammarPlaces>(*read_grammar(rules)));
    const auto end = follow_text(matcher, {.states = matcher.start()}, text);
    return end && end->bytes_left == 0 && matcher.may_end(end->states);
  };
  EXPECT_TRUE(takes("root ::= [^é]", "è"));
  EXPECT_FALSE(takes("root ::= [^é]", "é"));
  EXPECT_TRUE(takes("root ::= [à-ü] \"日本\" \"😀\"", "é日本😀"));
  for (const std::string_view character : {"\xF4\x8F\xBF\xBF", "\xED\x9F\xBF", "\xEE\x80\x80"})
    EXPECT_TRUE(takes("root ::= .", character));
  for (const std::string_view wrong :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xF0\x80\x80\x80", "\x80", "\xF5\x80\x80\x80",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xFF", "\xC3", "\xC3\x28", "\xE2\x82"})
    EXPECT_FALSE(takes("root ::= .", wrong));
}

// Each character doubles the number of states, which are all different. The matcher must give up, because
// other requests would wait meanwhile.
TEST(GrammarMatchers, EndWhereAGrammarCanBeReadInTooManyWays) {
  const auto file = write_tiny_model({.n_layers = 1});
  const auto tokenizer = Tokenizer::load(file->path()).value();
  const auto letter = [](char c) { return 3 + 256 + 1 + (c - 'a'); };
  const auto grammar =
      Grammar::make({"root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\""}, *tokenizer).value();
  int n = 0;
  for (; n < 40; ++n) {
    if (!grammar->accept(letter('a')).ok() || grammar->is_exhausted()) break;
  }
  EXPECT_GE(n, 12);
  EXPECT_LT(n, 30);
  EXPECT_TRUE(grammar->is_exhausted());
  EXPECT_FALSE(grammar->allows(letter('a')));
}

// The text comes in one piece, like a token of many characters.
TEST(GrammarMatchers, EndWithinAToken) {
  const auto table = read_grammar("root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\"");
  GrammarMatcher matcher(std::make_shared<const GrammarPlaces>(*table));
  GrammarStates states = matcher.start();
  for (int i = 0; i < 1000 && states != kNoStates; ++i) states = matcher.after(states, 'a');
  EXPECT_TRUE(matcher.is_exhausted());
}

// Many readings with the same result must cost no more than one.
TEST(GrammarMatchers, FollowWaysThatMeetOnce) {
  const auto table = read_grammar("root ::= (x | y | z)*\nx ::= \"a\"\ny ::= [a-c]\nz ::= \"a\" | \"aa\"");
  GrammarMatcher matcher(std::make_shared<const GrammarPlaces>(*table));
  GrammarStates states = matcher.start();
  for (int i = 0; i < 10000; ++i) {
    if (i % 100 == 0) matcher.begin_token(states);
    states = matcher.after(states, 'a');
    ASSERT_LT(matcher.size(states), 20U);
  }
  EXPECT_FALSE(matcher.is_exhausted());
}

// Over a long text, states that can no longer be reached must be forgotten.
TEST(GrammarMatchers, KeepTheirPlaceWhenTheyForget) {
  const auto table = read_grammar("root ::= s\ns ::= \"(\" s \")\" | \"x\"");
  GrammarMatcher matcher(std::make_shared<const GrammarPlaces>(*table));
  GrammarStates states = matcher.start();
  const auto follow = [&](char c, int n) {
    for (int i = 0; i < n; ++i) {
      matcher.begin_token(states);
      states = matcher.after(states, c);
      ASSERT_NE(states, kNoStates);
    }
  };
  follow('(', 100000);
  follow('x', 1);
  follow(')', 100000);
  EXPECT_TRUE(matcher.may_end(states));
  EXPECT_EQ(matcher.size(states), 1U);
}

}  // namespace
}  // namespace kvant
