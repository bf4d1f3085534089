#include "serve/api_request.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "serve/serve_fixture.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

const testing::FakeTokenizer kTokenizer;
const ApiLimits kLimits{.n_vocab = 64, .max_prompts = 3};

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}
ParsedRequest chat(const Json& more) {
  return parse_chat_request(with({{"messages", {{{"role", "user"}, {"content", "hi"}}}}}, more), kTokenizer,
                            kLimits);
}
ParsedRequest completion(const Json& more) {
  return parse_completion_request(with({{"prompt", "hi"}}, more), kTokenizer, kLimits);
}

ApiRequest accepted(const ParsedRequest& parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << error->message;
  return error == nullptr ? std::get<ApiRequest>(parsed) : ApiRequest{.prompts = {{}}};
}
// The parameter that is named as wrong; "accepted" if none is.
std::string wrong_parameter(const ParsedRequest& parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  if (error == nullptr) return "accepted";
  EXPECT_EQ(error->status, 400);
  EXPECT_FALSE(error->message.empty());
  return error->parameter;
}

TEST(ApiRequest, DrawsAsTheModelSaysByDefault) {
  const ApiRequest request = accepted(chat(Json::object()));
  const GenerationRequest& r = request.prompts.at(0);
  EXPECT_EQ(r.sampling.temperature, 1);
  EXPECT_EQ(r.sampling.top_p, 1);
  EXPECT_EQ(r.sampling.top_k, 0);
  EXPECT_EQ(r.sampling.min_p, 0);
  EXPECT_EQ(r.n_answers, 1);
  EXPECT_EQ(r.generation.max_tokens, -1);
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(r.prompt, kTokenizer.encode("user:hi\n", true, true).value());
}

TEST(ApiRequest, TakesWhatIsAskedFor) {
  const ApiRequest request = accepted(chat({{"temperature", 0.5},
                                            {"top_p", 0.9},
                                            {"top_k", 7},
                                            {"min_p", 0.1},
                                            {"seed", -1},
                                            {"n", 3},
                                            {"max_completion_tokens", 9},
                                            {"stop", {"a", "b"}},
                                            {"stream", true},
                                            {"stream_options", {{"include_usage", true}}},
                                            {"logprobs", true},
                                            {"top_logprobs", 4},
                                            {"user", "me"},
                                            {"model", "m"}}));
  const GenerationRequest& r = request.prompts.at(0);
  EXPECT_FLOAT_EQ(r.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(r.sampling.top_p, 0.9F);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(r.sampling.min_p, 0.1F);
  EXPECT_EQ(r.sampling.seed, 0xffffffffU);
  EXPECT_EQ(r.n_answers, 3);
  EXPECT_EQ(r.generation.max_tokens, 9);
  EXPECT_EQ(r.generation.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.generation.alternatives, 4);
  EXPECT_TRUE(request.stream && request.include_usage && request.wants_probabilities);
  EXPECT_EQ(r.client, "me");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(accepted(chat({{"safety_identifier", "me"}})).prompts.at(0).client, "me");  // user's later name
}

TEST(ApiRequest, NamesTheParameterThatIsWrong) {
  const std::pair<const char*, Json> wrong[] = {{"temperature", -0.1},
                                                {"temperature", "hot"},
                                                {"top_p", 0},
                                                {"top_p", 1.5},
                                                {"top_k", -2},
                                                {"top_k", 1.5},
                                                {"min_p", 2},
                                                {"seed", "x"},
                                                {"n", 0},
                                                {"n", 1000000},
                                                {"max_tokens", 0},
                                                {"max_tokens", 1e30},
                                                {"stop", {""}},
                                                {"stop", 5},
                                                {"stream", 1},
                                                {"logprobs", 3},
                                                {"top_logprobs", 50},
                                                {"model", 5},
                                                {"messages", "x"},
                                                {"messages", Json::array()},
                                                {"tools", 5},
                                                {"tool_choice", "required"},
                                                {"grammar", "root ::= \"a\""},
                                                {"presence_penalty", 1},
                                                {"logit_bias", {{"5", 1}}},
                                                {"no_such_thing", 1},
                                                {"stream_options", {{"include_usage", true}}},
                                                {"cache_prompt", false},
                                                {"prompt_cache_key", 5},
                                                {"functions", {1}}};
  for (const auto& [key, value] : wrong)
    EXPECT_EQ(wrong_parameter(chat({{key, value}})), key) << value.dump();
  EXPECT_EQ(wrong_parameter(chat({{"seed", 18446744073709551615U}})), "seed");
}

TEST(ApiRequest, TakesValuesThatAskForNothing) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"tools", nullptr},
                                                 {"tools", Json::array()},
                                                 {"tool_choice", "auto"},
                                                 {"response_format", {{"type", "text"}}},
                                                 {"presence_penalty", 0},
                                                 {"frequency_penalty", 0.0},
                                                 {"logit_bias", Json::object()},
                                                 {"store", false},
                                                 {"cache_prompt", true},
                                                 {"prompt_cache_key", "a"},
                                                 {"no_such_thing", nullptr},
                                                 {"stop", nullptr},
                                                 {"max_tokens", nullptr}})
    EXPECT_EQ(wrong_parameter(chat({{key, value}})), "accepted") << key << value.dump();
}

TEST(ApiRequest, ReadsMessagesOfText) {
  const auto messages = [](const Json& message) { return chat({{"messages", {message}}}); };
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(accepted(messages({{"role", "developer"}, {"content", parts}})).prompts[0].prompt,
            kTokenizer.encode("system:ab\n", true, true).value());
  EXPECT_EQ(wrong_parameter(messages(
                {{"role", "assistant"}, {"content", "x"}, {"refusal", nullptr}, {"tool_calls", nullptr}})),
            "accepted");
  EXPECT_EQ(wrong_parameter(messages({{"role", "tool"}, {"content", "x"}})), "messages");  // has no tools
  EXPECT_EQ(wrong_parameter(messages({{"role", "king"}, {"content", "x"}})), "messages[0].role");
  EXPECT_EQ(wrong_parameter(messages({{"role", "user"}})), "messages[0].content");
  EXPECT_EQ(wrong_parameter(messages({{"role", "user"}, {"content", 5}})), "messages[0].content");
  EXPECT_EQ(wrong_parameter(messages({{"role", "user"}, {"content", {{{"type", "image_url"}}}}})),
            "messages[0].content[0].type");
  EXPECT_EQ(wrong_parameter(messages("x")), "");
}

TEST(ApiRequest, ReadsPromptsOfTextAndTokens) {
  using Tokens = std::vector<std::int32_t>;
  EXPECT_EQ(accepted(completion({{"prompt", {5, 6}}})).prompts.at(0).prompt, (Tokens{5, 6}));
  const ApiRequest several = accepted(completion({{"prompt", {"ab", {7}}}, {"n", 2}, {"logprobs", 2}}));
  ASSERT_EQ(several.prompts.size(), 2U);
  EXPECT_EQ(several.prompts[0].prompt, kTokenizer.encode("ab", true, false).value());
  EXPECT_EQ(several.prompts[1].prompt, (Tokens{7}));
  EXPECT_EQ(several.prompts[1].n_answers, 2);
  EXPECT_EQ(several.prompts[1].generation.alternatives, 2);
  for (const Json& wrong : {Json(nullptr), Json(5), Json(Json::array()), Json({64}), Json({-1}), Json({1.5}),
                            Json({"a", "b", "c", "d"}), Json({{{"a", 1}}}), Json({18446744073709551615U})})
    EXPECT_EQ(wrong_parameter(completion({{"prompt", wrong}})), "prompt") << wrong.dump();
  EXPECT_EQ(wrong_parameter(completion({{"echo", true}})), "echo");
  EXPECT_EQ(wrong_parameter(completion({{"best_of", 4}})), "best_of");
  EXPECT_EQ(wrong_parameter(completion({{"best_of", 4}, {"n", 4}})), "accepted");
}

TEST(ApiRequest, RefusesABodyThatIsNoObject) {
  for (const char* body : {"[]", "5", "\"x\"", "null"}) {
    EXPECT_EQ(wrong_parameter(parse_chat_request(parse_json(body).value(), kTokenizer, kLimits)), "") << body;
    EXPECT_EQ(wrong_parameter(parse_completion_request(parse_json(body).value(), kTokenizer, kLimits)), "")
        << body;
  }
}

}  // namespace
}  // namespace kvant
