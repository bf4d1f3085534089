// Tests embeddings from a request to its vectors.
#include <gtest/gtest.h>

#include <cmath>

#include "serve/embeddings_routes.h"
#include "serve/serve_fixture.h"
#include "serve/tiny_scheduler_fixture.h"

namespace kvant::embeddings_test {
namespace {

using Json = nlohmann::ordered_json;

TEST(EmbeddingsRequest, TakesTextsAndTokens) {
  const testing::FakeTokenizer tokenizer;
  const auto parse = [&](const Json& body) {
    return parse_embeddings_request(body, tokenizer, {.n_vocab = testing::kFakeVocabulary, .n_embd = 64});
  };
  const auto wrong = [&](const Json& body) {
    const auto parsed = parse(body);
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? "accepted" : error->parameter;
  };
  const auto parsed = parse({{"input", {"a", "bc"}}, {"encoding_format", "base64"}, {"dimensions", 64}});
  const auto& wanted = std::get<ApiRequest>(parsed);
  EXPECT_TRUE(wanted.base64);
  ASSERT_EQ(wanted.prompts.size(), 2U);
  EXPECT_EQ(wanted.prompts[1].prompt, tokenizer.encode("bc", true, false).value());
  EXPECT_TRUE(wanted.prompts[0].embeds);
  EXPECT_EQ(wanted.prompts[0].generation.max_tokens, 0);
  EXPECT_EQ(std::get<ApiRequest>(parse({{"input", {1, 2}}})).prompts.at(0).prompt,
            (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(std::get<ApiRequest>(parse({{"input", {{1}, {2, 3}}}})).prompts.size(), 2U);
  EXPECT_EQ(wrong(Json::object()), "input");
  EXPECT_EQ(wrong({{"input", Json::array()}}), "input");
  EXPECT_EQ(wrong({{"input", {1, 99999}}}), "input");
  EXPECT_EQ(wrong({{"input", "a"}, {"encoding_format", "int8"}}), "encoding_format");
  EXPECT_EQ(wrong({{"input", "a"}, {"dimensions", 0}}), "dimensions");
  EXPECT_EQ(wrong({{"input", "a"}, {"dimensions", 32}}), "dimensions");
  EXPECT_EQ(wrong({{"input", "a"}, {"input_type", "query"}}), "accepted");
}

TEST(EmbeddingsRequest, WritesFloatsInBase64) {
  EXPECT_EQ(base64_of({}), "");
  const float one[] = {1.0F};
  EXPECT_EQ(base64_of(one), "AACAPw==");
  const float two[] = {1.0F, -2.0F};
  EXPECT_EQ(base64_of(two), "AACAPwAAAMA=");
  const float three[] = {1.0F, -2.0F, 0.5F};
  EXPECT_EQ(base64_of(three), "AACAPwAAAMAAAAA/");
}

class Embeddings : public testing::TinyScheduler {
 protected:
  static std::vector<std::int32_t> tokens(int n, int seed) {
    std::vector<std::int32_t> some;
    for (int i = 0; i < n; ++i) some.push_back(3 + (i * 31 + seed * 7) % 200);
    return some;
  }
  static GenerationRequest request(const std::vector<std::int32_t>& prompt) {
    GenerationRequest wanted;
    wanted.prompt = prompt;
    wanted.generation.max_tokens = 0;
    wanted.embeds = true;
    return wanted;
  }
  // Returns the mean hidden state of all tokens, scaled to length 1. The engine reads all tokens in one step.
  std::vector<float> expected(const std::vector<std::int32_t>& prompt) {
    const auto plan = testing::plan_for("kvant-4bit", engine_->geometry(), nullptr, backend_->page_order());
    Cache cache(plan, 0);
    const int n = static_cast<int>(prompt.size()), n_embd = engine_->n_embd();
    std::vector<float> states(static_cast<std::size_t>(n) * n_embd), mean(n_embd);
    const Status done = engine_->embed(cache, *backend_, {cache.add(), prompt, /*is_prompt=*/true},
                                       {states.data(), n, n_embd});
    EXPECT_TRUE(done.ok());
    for (std::size_t i = 0; i < states.size(); ++i) mean[i % n_embd] += states[i];
    double squares = 0;
    for (const float x : mean) squares += static_cast<double>(x) * x;
    for (float& x : mean) x /= static_cast<float>(std::sqrt(squares));
    return mean;
  }
};

TEST_F(Embeddings, AreTheMeanOfThePromptsHiddenStates) {
  // The second prompt shares a prefix with the first, whose pages the prefix cache keeps. Tokens from the
  // prefix cache have no hidden states, so the server must read them again.
  std::vector<std::int32_t> longer = tokens(700, 1);
  longer.resize(650);
  const std::vector<std::vector<std::int32_t>> prompts = {tokens(700, 1), longer, tokens(5, 2)};
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : prompts) requests.push_back(request(prompt));
  const auto replies = ask(requests);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(replies[i].failure, "");
    ASSERT_EQ(replies[i].parts.size(), 1U);
    EXPECT_EQ(replies[i].cached, 0);
    const std::vector<float>& found = replies[i].parts[0].embedding;
    const std::vector<float> wanted = expected(prompts[i]);
    ASSERT_EQ(found.size(), wanted.size());
    double cosine = 0;
    for (std::size_t c = 0; c < found.size(); ++c) cosine += static_cast<double>(found[c]) * wanted[c];
    EXPECT_NEAR(cosine, 1, 1e-3) << i;
  }
}

TEST_F(Embeddings, StandBesideCompletions) {
  GenerationRequest completion;
  completion.prompt = tokens(40, 3);
  completion.generation.max_tokens = 8;
  completion.sampling.temperature = 0;
  const auto alone = ask({completion});
  const auto together = ask({completion, request(tokens(300, 4)), completion});
  EXPECT_EQ(together[0].text, alone[0].text);
  EXPECT_EQ(together[2].text, alone[0].text);
  EXPECT_EQ(together[1].parts.at(0).embedding.size(), static_cast<std::size_t>(engine_->n_embd()));
}

}  // namespace
}  // namespace kvant::embeddings_test
