#include "serve/infill_prompt.h"

#include <gtest/gtest.h>

#include "serve/infill_routes.h"
#include "serve/serve_fixture.h"

namespace kvant::infill_prompt_test {
namespace {

using Json = nlohmann::ordered_json;

class FimTokenizer : public testing::FakeTokenizer {
 public:
  explicit FimTokenizer(FimTokens tokens) : tokens_(tokens) {}
  FimTokens fim_tokens() const override { return tokens_; }

 private:
  FimTokens tokens_;
};

const FimTokenizer kFim({.prefix = 1, .suffix = 2, .middle = 3});
const FimTokenizer kFiles({.prefix = 1, .suffix = 2, .middle = 3, .repository = 4, .file = 5});

// Builds a list of tokens from `parts`. Numbers are tokens, and texts are encoded.
std::vector<std::int32_t> row(const Json& parts) {
  std::vector<std::int32_t> tokens;
  for (const Json& part : parts) {
    if (part.is_number()) {
      tokens.push_back(part);
    } else {
      const auto text = testing::FakeTokenizer().encode(part, false, false).value();
      tokens.insert(tokens.end(), text.begin(), text.end());
    }
  }
  return tokens;
}

TEST(InfillPrompt, HasPrefixAndSuffixWithTheModelsTokens) {
  EXPECT_EQ(infill_prompt({.prefix = "ab", .suffix = "c", .start = "d"}, kFim).value(),
            row({1, "abd", 2, "c", 3}));
  EXPECT_EQ(infill_prompt({}, kFiles).value(), row({1, 2, 3}));
}

TEST(InfillPrompt, HasFilesBefore) {
  const InfillText text{.prefix = "a", .suffix = "b", .files = {{"x", "xx"}, {"y", "yy"}}};
  EXPECT_EQ(infill_prompt(text, kFiles).value(),
            row({4, "myproject\n", 5, "x\n", "xx", 5, "y\n", "yy", 5, "filename\n", 1, "a", 2, "b", 3}));
  EXPECT_EQ(infill_prompt(text, kFim).value(),
            row({"\n\n--- snippet ---\n\nxx\n\n--- snippet ---\n\nyy", 1, "a", 2, "b", 3}));
}

TEST(InfillPrompt, IsRefusedWhereTheModelHasNoTokens) {
  const auto prompt = infill_prompt({.prefix = "a"}, testing::FakeTokenizer());
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.error().message,
            "the model was not trained to fill in the middle of a text: its vocabulary has no FIM tokens");
}

// Returns the name of the parameter that the error names, or "accepted" if the request is valid.
std::string wrong_parameter(const ParsedRequest& request) {
  const auto* error = std::get_if<ApiError>(&request);
  return error == nullptr ? "accepted" : error->parameter;
}

TEST(InfillRequest, TakesWhatEditorsSend) {
  const ParsedRequest request = parse_infill_request({{"input_prefix", "a"},
                                                      {"input_suffix", "b"},
                                                      {"input_extra", {{{"filename", "x"}, {"text", "xx"}}}},
                                                      {"prompt", "c"},
                                                      {"n_predict", 8},
                                                      {"top_k", 40},
                                                      {"samplers", {"top_k", "top_p", "infill"}},
                                                      {"t_max_predict_ms", 500},
                                                      {"cache_prompt", true},
                                                      {"response_fields", {"content"}}},
                                                     kFiles, {.n_vocab = testing::kFakeVocabulary});
  ASSERT_EQ(wrong_parameter(request), "accepted");
  const GenerationRequest& prompt = std::get<ApiRequest>(request).prompts.at(0);
  EXPECT_EQ(prompt.prompt, row({4, "myproject\n", 5, "x\n", "xx", 5, "filename\n", 1, "ac", 2, "b", 3}));
  EXPECT_EQ(prompt.generation.max_tokens, 8);
  EXPECT_EQ(prompt.sampling.top_k, 40);
}

TEST(InfillRequest, NamesWhatIsWrong) {
  const auto wrong = [](const Json& body) {
    return wrong_parameter(parse_infill_request(body, kFiles, {.n_vocab = testing::kFakeVocabulary}));
  };
  EXPECT_EQ(wrong({{"input_prefix", 5}}), "input_prefix");
  EXPECT_EQ(wrong({{"input_extra", 5}}), "input_extra");
  EXPECT_EQ(wrong({{"input_extra", {{{"text", 5}}}}}), "input_extra[0].text");
  EXPECT_EQ(wrong({{"input_prefix", "a"}, {"mirostat", 2}}), "mirostat");
  EXPECT_EQ(wrong({{"input_prefix", "a"}, {"n", 2}}), "n");
  EXPECT_EQ(wrong(Json::array()), "");
}

TEST(CompletionSuffix, AsksForTheMiddle) {
  const auto parse = [](const Json& body, const Tokenizer& tokenizer) {
    return parse_completion_request(body, tokenizer, {.n_vocab = testing::kFakeVocabulary});
  };
  const ParsedRequest request = parse({{"prompt", {"ab", "c"}}, {"suffix", "d"}}, kFiles);
  ASSERT_EQ(wrong_parameter(request), "accepted");
  EXPECT_EQ(std::get<ApiRequest>(request).prompts.at(0).prompt, row({1, "ab", 2, "d", 3}));
  EXPECT_EQ(std::get<ApiRequest>(request).prompts.at(1).prompt, row({1, "c", 2, "d", 3}));
  EXPECT_EQ(wrong_parameter(parse({{"prompt", "ab"}, {"suffix", "d"}}, testing::FakeTokenizer())), "suffix");
  EXPECT_EQ(wrong_parameter(parse({{"prompt", {1, 2}}, {"suffix", "d"}}, kFiles)), "prompt");
  EXPECT_EQ(wrong_parameter(parse({{"prompt", "ab"}, {"suffix", "d"}, {"echo", true}}, kFiles)), "echo");
  EXPECT_EQ(wrong_parameter(parse({{"prompt", "ab"}, {"suffix", ""}}, testing::FakeTokenizer())), "accepted");
}

}  // namespace
}  // namespace kvant::infill_prompt_test
