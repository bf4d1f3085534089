#include "task/text_score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/tiny_model.h"
#include "recipe/recipe.h"
#include "task/conversation.h"

namespace kvant::text_score_test {
namespace {

constexpr int kVocabulary = TinyModelWriter::kVocabulary;

// Opens a tiny model with an unquantized cache.
struct Opened {
  std::unique_ptr<TinyFile> file = write_tiny_model({});
  Result<Session> session =
      Session::open({.model = file->path(), .backend = "reference"}, WeightMode::as_stored, /*context=*/0);
  std::shared_ptr<const Plan> plan =
      resolve(parse_recipe("bf16").value(), session->engine().geometry(), nullptr).value();

  Conversation conversation(const SamplerOptions& sampling = {}) {
    return {*session, session->backend(), plan, Sampler::make(sampling).value(), /*context=*/400};
  }
};

std::vector<std::int32_t> some_tokens(int n) {
  std::vector<std::int32_t> tokens(n);
  for (int i = 0; i < n; ++i) tokens[i] = 3 + (7 * i + i * i) % (kVocabulary - 3);
  return tokens;
}

TEST(TextScore, IsTheLogarithmOfEachTokensProbabilityAfterThoseBeforeIt) {
  Opened opened;
  // The text has more tokens than one step.
  const std::vector<std::int32_t> tokens = some_tokens(300);
  const auto scores = score_tokens(opened.session->engine(), opened.session->backend(), opened.plan, tokens);
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  ASSERT_EQ(scores->size(), tokens.size() - 1);
  Cache cache(opened.plan, 0);
  const SequenceId sequence = cache.add();
  std::vector<float> logits(kVocabulary);
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const EngineInput input{sequence, std::span(tokens).subspan(i, 1)};
    ASSERT_TRUE(opened.session->engine()
                    .step(cache, opened.session->backend(), {&input, 1}, {logits.data(), 1, kVocabulary})
                    .ok());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    ASSERT_NEAR((*scores)[i], logits[tokens[i + 1]] - std::log(sum), 2e-3) << i;
  }
}

TEST(TextScore, OfOneTokenIsEmpty) {
  Opened opened;
  const auto scores =
      score_tokens(opened.session->engine(), opened.session->backend(), opened.plan, some_tokens(1));
  EXPECT_TRUE(scores.ok() && scores->empty());
}

TEST(Conversation, HoldsWhatItHasShownWhereverAnAnswerEnds) {
  Opened opened;
  const std::atomic<bool> never{false};
  for (const int n_tokens : {0, 1, 5}) {
    Conversation whole = opened.conversation(), cut = opened.conversation();
    for (Conversation* one : {&whole, &cut}) ASSERT_TRUE(one->read(some_tokens(20), "", never).ok());
    std::string text;
    const auto end =
        whole.generate({.max_tokens = n_tokens}, never, [&](const std::string& shown) { text += shown; });
    ASSERT_TRUE(end.ok() && *end == AnswerEnd::length);
    cut.begin_answer({});
    std::string pieces;
    for (int i = 0; i < n_tokens; ++i) pieces += cut.next().value().text;
    EXPECT_FALSE(cut.answer_end().has_value());
    pieces += cut.interrupt().value().text;
    EXPECT_EQ(cut.answer_end(), AnswerEnd::interrupted);
    EXPECT_EQ(pieces, text);
    EXPECT_EQ(cut.length(), 20 + n_tokens);
    EXPECT_EQ(whole.length(), 20 + n_tokens);
  }
}

TEST(Conversation, EndsWhereTheContextDoes) {
  Opened opened;
  const std::atomic<bool> never{false};
  Conversation conversation = opened.conversation();
  ASSERT_TRUE(conversation.read(some_tokens(398), "", never).ok());
  const auto end = conversation.generate({}, never, [](const std::string&) {});
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, AnswerEnd::context_full);
  EXPECT_LT(conversation.length(), 400);
  EXPECT_FALSE(conversation.read(some_tokens(2), "", never).ok());
}

}  // namespace
}  // namespace kvant::text_score_test
