#include "generate/generation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

namespace kvant {
namespace {

// Token i has the text kPieces[i]. Token 6 ends a completion, and token 7 is a control token.
const std::vector<std::string> kPieces = {"a", "b ", "ST", "OP", "\xc3", "\xa4", "", "<|x|>"};
constexpr std::int32_t kEnd = 6, kControl = 7;

class Letters : public Tokenizer {
 public:
  Result<std::vector<std::int32_t>> encode(const std::string&, bool, bool) const override {
    return error("not needed");
  }
  std::string piece(std::int32_t token) const override { return kPieces[token]; }
  bool ends_generation(std::int32_t token) const override { return token == kEnd; }
  bool is_control(std::int32_t token) const override { return token == kControl; }
};

std::vector<float> logits_of(std::int32_t token) {
  std::vector<float> logits(kPieces.size(), 0.0F);
  logits[token] = 3;
  return logits;
}

struct Answer {
  std::vector<std::string> texts;
  std::vector<std::int32_t> reported;
  GenerationEnd end = GenerationEnd::none;
  int n_tokens = 0;
};

Answer generate(const std::vector<std::int32_t>& tokens, const GenerationOptions& options) {
  const Letters letters;
  const std::unique_ptr<Sampler> sampler = Sampler::make({}).value();
  Generation generation(letters, *sampler, options);
  Answer answer;
  for (const std::int32_t token : tokens) {
    if (generation.end() != GenerationEnd::none) break;
    const GeneratedText shown = generation.next(logits_of(token));
    answer.texts.push_back(shown.text);
    for (const ReportedToken& t : shown.tokens) answer.reported.push_back(t.chosen.token);
  }
  answer.end = generation.end();
  answer.n_tokens = generation.n_tokens();
  return answer;
}

using Texts = std::vector<std::string>;
using Tokens = std::vector<std::int32_t>;

TEST(Generation, EndsWhereTheModelDoes) {
  const Answer answer = generate({0, 1, kEnd, 0}, {});
  EXPECT_EQ(answer.texts, (Texts{"a", "b ", ""}));
  EXPECT_EQ(answer.end, GenerationEnd::finished);
  EXPECT_EQ(answer.n_tokens, 2);
}

TEST(Generation, EndsAfterItsMaximumOfTokens) {
  const Answer answer = generate({0, 1, 4, 0}, {.max_tokens = 3});
  EXPECT_EQ(answer.texts, (Texts{"a", "b ", "\xc3"}));  // the completion ends within a character
  EXPECT_EQ(answer.end, GenerationEnd::length);
  EXPECT_EQ(answer.n_tokens, 3);
}

TEST(Generation, ReportsTokensWithTheirText) {
  GenerationOptions options{.stops = {"STOP"}, .wants_probabilities = true};
  EXPECT_EQ(generate({0, 4, 5, 1}, options).reported, (Tokens{0, 4, 5, 1}));
  EXPECT_EQ(generate({0, 4, 5, 1}, options).texts, (Texts{"a", "", "\xc3\xa4", "b "}));
  const Answer stopped = generate({0, 2, 3, 1}, options);
  EXPECT_EQ(stopped.texts, (Texts{"a", "", ""}));
  EXPECT_EQ(stopped.reported, (Tokens{0}));  // the stop text is not part of the completion
  EXPECT_EQ(stopped.end, GenerationEnd::finished);
  EXPECT_EQ(generate({0, 2, kEnd}, options).reported, (Tokens{0, 2}));
}

TEST(Generation, HidesControlTokensWhereItIsToldTo) {
  EXPECT_EQ(generate({0, kControl, 1}, {}).texts, (Texts{"a", "<|x|>", "b "}));
  GenerationOptions options{.wants_probabilities = true, .hides_control_tokens = true};
  const Answer hidden = generate({0, kControl, 1}, options);
  EXPECT_EQ(hidden.texts, (Texts{"a", "", "b "}));
  EXPECT_EQ(hidden.reported, (Tokens{0, kControl, 1}));
  EXPECT_EQ(hidden.n_tokens, 3);
  options.stops = {"<|x|>"};
  EXPECT_EQ(generate({0, kControl, 1}, options).end, GenerationEnd::finished);
  options.stops.clear();
  options.kept_tokens = {kControl};
  EXPECT_EQ(generate({0, kControl, 1}, options).texts, (Texts{"a", "<|x|>", "b "}));
}

TEST(Generation, GivesTheProbabilitiesOfTheModel) {
  const Letters letters;
  const std::unique_ptr<Sampler> sampler = Sampler::make({}).value();
  Generation generation(letters, *sampler, {.wants_probabilities = true, .alternatives = 2});
  const GeneratedText shown = generation.next(logits_of(1));
  ASSERT_EQ(shown.tokens.size(), 1U);
  const double p = std::exp(3.0) / (std::exp(3.0) + static_cast<double>(kPieces.size() - 1));
  EXPECT_NEAR(shown.tokens[0].chosen.log_probability, std::log(p), 1e-6);
  ASSERT_EQ(shown.tokens[0].alternatives.size(), 2U);
  EXPECT_EQ(shown.tokens[0].alternatives[0].token, 1);
  EXPECT_EQ(shown.tokens[0].alternatives[1].token, 0);
}

TEST(Generation, ShowsWhatWasHeldBackWhenItIsCutOff) {
  const Letters letters;
  const std::unique_ptr<Sampler> sampler = Sampler::make({}).value();
  Generation generation(letters, *sampler, {.stops = {"STOP"}});
  EXPECT_EQ(generation.next(logits_of(2)).text, "");
  EXPECT_EQ(generation.cut_off().text, "ST");
  EXPECT_EQ(generation.end(), GenerationEnd::length);
}

}  // namespace
}  // namespace kvant
