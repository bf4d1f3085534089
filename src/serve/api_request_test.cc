#include "serve/api_request.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json_reader.h"
#include "serve/serve_fixture.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

const testing::FakeTokenizer kTokenizer;
const testing::FakeChatTemplate kTemplate;
const ApiLimits kLimits{.n_vocab = 64, .chat_template = &kTemplate, .max_prompts = 3};

// ToldTokenizer returns the flags of its call in place of tokens.
class ToldTokenizer : public testing::FakeTokenizer {
 public:
  Result<std::vector<std::int32_t>> encode(const std::string&, bool add_special,
                                           bool parse_special) const override {
    return std::vector<std::int32_t>{add_special, parse_special};
  }
};

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
// Returns the name of the parameter that the error names, or "accepted" if the request is valid.
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
                                            {"seed", 4294967295},
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
  EXPECT_EQ(accepted(chat({{"safety_identifier", "me"}})).prompts.at(0).client,
            "me");  // `safety_identifier` is OpenAI's newer name for `user`
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
                                                {"presence_penalty", "much"},
                                                {"repeat_penalty", 0},
                                                {"repeat_last_n", -2},
                                                {"typical_p", 0},
                                                {"logit_bias", 5},
                                                {"logit_bias", {{"64", 1}}},
                                                {"logit_bias", {{"-1", 1}}},
                                                {"logit_bias", {{"5", "x"}}},
                                                {"logit_bias", {{"5", true}}},
                                                {"logit_bias", {{{"5", 1}}}},
                                                {"logit_bias", {{18446744073709551615U, 1}}},
                                                {"logit_bias", {{1.5, 1}}},
                                                {"stream_options", {{"include_usage", true}}},
                                                {"audio", {{"voice", "x"}}},
                                                {"modalities", {"text", "audio"}},
                                                {"mirostat", 3},
                                                {"guided_regex", "a+"},
                                                {"max_new_tokens", 5},
                                                {"functions", {1}}};
  for (const auto& [key, value] : wrong)
    EXPECT_EQ(wrong_parameter(chat({{key, value}})), key) << value.dump();
  EXPECT_EQ(wrong_parameter(chat({{"seed", 18446744073709551615U}})), "seed");
}

TEST(ApiRequest, TakesValuesThatMeanTheDefault) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"tools", nullptr},
                                                 {"tools", Json::array()},
                                                 {"tool_choice", "auto"},
                                                 {"response_format", {{"type", "text"}}},
                                                 {"presence_penalty", 0},
                                                 {"frequency_penalty", 0.0},
                                                 {"logit_bias", Json::object()},
                                                 {"temperature", nullptr},
                                                 {"top_k", -1},
                                                 {"top_k", 0.0},
                                                 {"n", 1.0},
                                                 {"stop", nullptr},
                                                 {"stop", ""},
                                                 {"stop", {""}},
                                                 {"stop", Json::array()},
                                                 {"logprobs", false},
                                                 {"logprobs", 0},
                                                 {"top_logprobs", 0},
                                                 {"modalities", {"text"}},
                                                 {"function_call", "auto"},
                                                 {"functions", Json::array()},
                                                 {"typical_p", 1.0},
                                                 {"mirostat", 0},
                                                 {"dry_multiplier", 0},
                                                 {"top_n_sigma", -1},
                                                 {"use_beam_search", false},
                                                 {"ignore_eos", false},
                                                 {"guided_json", ""},
                                                 {"audio", nullptr}})
    EXPECT_EQ(wrong_parameter(chat({{key, value}})), "accepted") << key << value.dump();
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"})
    EXPECT_EQ(accepted(chat({{name, -1}})).prompts.at(0).generation.max_tokens, -1) << name;
  EXPECT_EQ(accepted(chat({{"n_predict", 7.0}})).prompts.at(0).generation.max_tokens, 7);
  EXPECT_EQ(wrong_parameter(chat({{"max_tokens", 5}, {"n_predict", 7}})), "n_predict");
  EXPECT_EQ(accepted(chat({{"stop", {"", "a"}}})).prompts.at(0).generation.stops,
            std::vector<std::string>{"a"});
  EXPECT_NE(accepted(chat({{"seed", -1}})).prompts.at(0).sampling.seed,
            // Every request with a seed of -1 gets another random seed.
            accepted(chat({{"seed", -1}})).prompts.at(0).sampling.seed);
}

TEST(ApiRequest, TakesHintsWhateverTheySay) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"store", true},
                                                 {"metadata", {{"a", "b"}}},
                                                 {"service_tier", "flex"},
                                                 {"prompt_cache_key", "a"},
                                                 {"prompt_cache_retention", "24h"},
                                                 {"prediction", {{"type", "content"}, {"content", "text"}}},
                                                 {"cache_prompt", false},
                                                 {"id_slot", 3},
                                                 {"no_such_thing", 1}})
    EXPECT_EQ(wrong_parameter(chat({{key, value}})), "accepted") << key << value.dump();
}

TEST(ApiRequest, ReadsPenaltiesUnderAllNames) {
  const auto penalties = [](const Json& more) {
    return accepted(chat(more)).prompts.at(0).sampling.penalties;
  };
  const PenaltyOptions openai = penalties({{"presence_penalty", 0.5}, {"frequency_penalty", -1}});
  EXPECT_EQ(openai.presence, 0.5F);
  EXPECT_EQ(openai.frequency, -1);
  EXPECT_FALSE(openai.repeats());
  EXPECT_FALSE(penalties(Json::object()).any());
  EXPECT_EQ(penalties({{"repeat_penalty", 1.5}}).repeat, 1.5F);
  EXPECT_EQ(penalties({{"repeat_penalty", 1.5}}).repeat_last_n, 64);
  EXPECT_EQ(penalties({{"repeat_penalty", 1.5}, {"repeat_last_n", 7}}).repeat_last_n, 7);
  EXPECT_EQ(penalties({{"repetition_penalty", 1.5}}).repeat, 1.5F);
  EXPECT_EQ(penalties({{"repetition_penalty", 1.5}}).repeat_last_n, -1);
  EXPECT_EQ(wrong_parameter(chat({{"repeat_penalty", 1.5}, {"repetition_penalty", 2}})),
            "repetition_penalty");
}

TEST(ApiRequest, ReadsBiasesInAllForms) {
  const auto biases = [](const Json& json) {
    std::vector<std::pair<std::int32_t, float>> read;
    const ApiRequest request = accepted(chat({{"logit_bias", json}}));
    for (const TokenBias& bias : request.prompts.at(0).sampling.bias)
      read.emplace_back(bias.token, bias.bias);
    return read;
  };
  using Biases = std::vector<std::pair<std::int32_t, float>>;
  EXPECT_EQ(biases({{"5", -100}, {"6", 1.5}}), (Biases{{5, -100}, {6, 1.5F}}));
  EXPECT_EQ(biases({{"ab", 2}}), (Biases{{26, 2}, {27, 2}}));
  EXPECT_EQ(biases(Json::parse(R"([[5, 1], ["b", false], ["7", 2.5]])")),
            (Biases{{5, 1}, {27, -INFINITY}, {7, 2.5F}}));
  const auto endless = accepted(chat({{"ignore_eos", true}})).prompts.at(0).sampling.bias;
  ASSERT_EQ(endless.size(), 1U);
  EXPECT_EQ(endless[0].token, testing::kFakeEnd);
  EXPECT_EQ(endless[0].bias, -INFINITY);
}

TEST(ApiRequest, ReadsTheSamplersOfLlamaServer) {
  const SamplerOptions sampling = accepted(chat({{"typical_p", 0.9},
                                                 {"top_n_sigma", 2},
                                                 {"xtc_probability", 0.5},
                                                 {"xtc_threshold", 0.2},
                                                 {"dynatemp_range", 0.3},
                                                 {"dynatemp_exponent", 2}}))
                                      .prompts.at(0)
                                      .sampling;
  EXPECT_EQ(sampling.typical_p, 0.9F);
  EXPECT_EQ(sampling.top_n_sigma, 2);
  EXPECT_EQ(sampling.xtc_probability, 0.5F);
  EXPECT_EQ(sampling.xtc_threshold, 0.2F);
  EXPECT_EQ(sampling.dynatemp_range, 0.3F);
  EXPECT_EQ(sampling.dynatemp_exponent, 2);
}

TEST(ApiRequest, ReadsMessagesOfText) {
  const auto messages = [](const Json& message) { return chat({{"messages", {message}}}); };
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(accepted(messages({{"role", "developer"}, {"content", parts}})).prompts[0].prompt,
            kTokenizer.encode("system:ab\n", true, true).value());
  EXPECT_EQ(wrong_parameter(messages(
                {{"role", "assistant"}, {"content", "x"}, {"refusal", nullptr}, {"tool_calls", nullptr}})),
            "accepted");
  EXPECT_EQ(wrong_parameter(messages({{"role", "tool"}, {"content", "x"}})),
            "messages");  // the conversation has no call to which the result could belong
  EXPECT_EQ(wrong_parameter(messages({{"role", "king"}, {"content", "x"}})), "messages[0].role");
  EXPECT_EQ(wrong_parameter(messages({{"role", "user"}})), "messages[0].content");
  EXPECT_EQ(wrong_parameter(messages({{"role", "user"}, {"content", 5}})), "messages[0].content");
  EXPECT_EQ(wrong_parameter(messages({{"role", "user"}, {"content", {{{"type", "image_url"}}}}})),
            "messages[0].content[0].type");
  EXPECT_EQ(wrong_parameter(messages("x")), "messages[0]");
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
  EXPECT_EQ(wrong_parameter(completion({{"best_of", 4}})), "best_of");
  EXPECT_EQ(wrong_parameter(completion({{"best_of", 4}, {"n", 4}})), "accepted");
  EXPECT_EQ(wrong_parameter(completion({{"logprobs", false}})), "accepted");
}

TEST(ApiRequest, ReadsControlTokensInPromptsUnlessToldOtherwise) {
  using Tokens = std::vector<std::int32_t>;
  const auto read = [](Json body) {
    body["prompt"] = "<|im_start|>user";
    return accepted(parse_completion_request(body, ToldTokenizer(), kLimits)).prompts.at(0);
  };
  EXPECT_EQ(read(Json::object()).prompt, (Tokens{1, 1}));
  EXPECT_TRUE(read(Json::object()).text_has_special_tokens);
  EXPECT_EQ(read({{"parse_special", false}}).prompt, (Tokens{1, 0}));
  EXPECT_FALSE(read({{"parse_special", false}}).text_has_special_tokens);
  EXPECT_EQ(read({{"add_special_tokens", false}}).prompt, (Tokens{0, 1}));
}

TEST(ApiRequest, ScoresTextsWithoutGenerating) {
  const ApiRequest request = accepted(completion({{"echo", true}, {"logprobs", 1}, {"max_tokens", 0}}));
  EXPECT_TRUE(request.wants_probabilities);
  EXPECT_TRUE(request.prompts.at(0).wants_prompt_probabilities());
  EXPECT_EQ(request.prompts.at(0).generation.max_tokens, 0);
  EXPECT_EQ(request.prompts.at(0).text, "hi");
  EXPECT_FALSE(accepted(completion({{"echo", true}})).prompts.at(0).wants_prompt_probabilities());
  EXPECT_EQ(wrong_parameter(completion({{"echo", true}, {"logprobs", 1}, {"session", "s"}})), "echo");
  EXPECT_EQ(wrong_parameter(chat({{"echo", true}})), "echo");
}

TEST(ApiRequest, RefusesABodyThatIsNoObject) {
  for (const char* body : {"[]", "5", "\"x\"", "null"}) {
    EXPECT_EQ(wrong_parameter(parse_chat_request(parse_json(body).value(), kTokenizer, kLimits)), "") << body;
    EXPECT_EQ(wrong_parameter(parse_completion_request(parse_json(body).value(), kTokenizer, kLimits)), "")
        << body;
  }
}

// Each list names parameters that accept neither of the two values that follow the list.
TEST(ApiRequest, TellsAWrongTypeFromAWrongValue) {
  const auto error = [](const ParsedRequest& parsed) {
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? ApiError{.code = "accepted"} : *error;
  };
  const Json plain = {{"stream", true}};
  for (const char* name : {"model",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "typical_p",
                           "top_n_sigma",
                           "seed",
                           "n",
                           "stop",
                           "stream",
                           "stream_options",
                           "max_tokens",
                           "frequency_penalty",
                           "repeat_penalty",
                           "repeat_last_n",
                           "logit_bias",
                           "ignore_eos",
                           "user",
                           "guard",
                           "session",
                           "response_format",
                           "grammar",
                           "skip_special_tokens",
                           "logprobs"}) {
    for (const Json& value : {Json::array({Json::array()}), Json::array({5, Json::object()})}) {
      const Json more = with(plain, {{name, value}});
      for (const ApiError& wrong : {error(chat(more)), error(completion(more))}) {
        EXPECT_EQ(wrong.code, kInvalidType) << name << ": " << wrong.message;
        EXPECT_TRUE(wrong.parameter.starts_with(name)) << wrong.parameter;
      }
    }
  }
  for (const char* name :
       {"messages", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs", "prediction",
        "chat_template_kwargs", "reasoning_effort", "reasoning_format", "enable_thinking"}) {
    for (const Json& value : {Json::array({Json::array()}), Json(1.5)}) {
      const ApiError wrong = error(chat({{name, value}, {"logprobs", true}}));
      EXPECT_EQ(wrong.code, kInvalidType) << name << ": " << wrong.message;
    }
  }
  for (const Json& value : {Json(5), Json(Json::object()), Json({"a", 5}), Json({1.5})})
    EXPECT_EQ(error(completion({{"prompt", value}})).code, kInvalidType) << value.dump();
  const Json wrong_values = {{"temperature", -1},
                             {"prediction", {{"type", "x"}, {"content", "text"}}},
                             {"n", 0},
                             {"max_tokens", 18446744073709551615U},
                             {"reasoning_effort", "huge"},
                             {"response_format", {{"type", "xml"}}},
                             {"messages", Json::array()},
                             {"tool_choice", "sometimes"}};
  for (const auto& [name, value] : wrong_values.items())
    EXPECT_EQ(error(chat({{name, value}})).code, kInvalidValue) << name;
}

TEST(ApiRequest, SaysWhatIsMissingAndWhere) {
  const auto message_of = [](const ParsedRequest& parsed) {
    const auto* error = std::get_if<ApiError>(&parsed);
    if (error == nullptr) return std::string("accepted");
    EXPECT_EQ(error->code, kMissingParameter) << error->message;
    return error->message;
  };
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const auto turns = [&](const Json& last) {
    return message_of(chat({{"messages", Json::array({user, last})}}));
  };
  EXPECT_EQ(turns({{"content", "hi"}}),
            "'messages[1].role' is missing: give system, user, assistant or tool");
  EXPECT_EQ(turns({{"role", "user"}}), "'messages[1].content' is missing: give a text");
  const Json called = {{"role", "assistant"}, {"tool_calls", {{{"function", {{"arguments", "{}"}}}}}}};
  EXPECT_EQ(turns(called),
            "'messages[1].tool_calls[0].function.name' is missing: give the function that was called");
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const auto choice = [&](const Json& choice) {
    return message_of(chat({{"tools", tools}, {"tool_choice", choice}}));
  };
  EXPECT_EQ(choice({{"type", "function"}}),
            "'tool_choice.function' is missing: give an object with the 'name' of the function to call");
  EXPECT_EQ(choice({{"type", "function"}, {"function", Json::object()}}),
            "'tool_choice.function.name' is missing: give the function to call");
  EXPECT_EQ(message_of(completion({{"prompt", nullptr}})),
            "'prompt' is missing: give a text, or a list of texts");
}

TEST(ApiRequest, SaysWhichPromptIsNone) {
  const auto message = [](const Json& prompt) {
    const ParsedRequest parsed = completion({{"prompt", prompt}});
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? "accepted" : error->message;
  };
  EXPECT_EQ(message(Json::array()), "'prompt' is empty: give a text or a list of tokens");
  EXPECT_EQ(message({"a", Json::array()}), "'prompt[1]' is empty: give a text or a list of tokens");
  EXPECT_EQ(message(""), "'prompt' is empty: give a text or a list of tokens");
  EXPECT_EQ(message({"a", 5}), "'prompt[1]' must be a text or a list of tokens");
  EXPECT_EQ(message({"a", {64}}),
            "'prompt[1]' has the token 64, which is not in the model's vocabulary of 64");
  EXPECT_EQ(message({"a", "b", "c", "d"}),
            "'prompt' lists 4 texts, and a request has at most 3: send the others in separate requests");
}

}  // namespace
}  // namespace kvant
