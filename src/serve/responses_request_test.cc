#include "serve/responses_request.h"

#include <gtest/gtest.h>

#include "serve/responses_answer.h"
#include "serve/serve_fixture.h"
#include "serve/tiny_scheduler_fixture.h"

namespace kvant::responses_request_test {
namespace {

using Json = nlohmann::ordered_json;

const testing::FakeTokenizer kTokenizer;
const testing::FakeChatTemplate kTemplate;

ParsedRequest parsed(const Json& more) {
  Json body = {{"input", "hi"}};
  body.update(more);
  return parse_responses_request(body, kTokenizer, {.chat_template = &kTemplate});
}
// Returns the name of the parameter that the error names, or "accepted" if the request is valid.
std::string wrong_parameter(const Json& more) {
  const ParsedRequest request = parsed(more);
  const auto* error = std::get_if<ApiError>(&request);
  return error == nullptr ? "accepted" : error->parameter;
}

TEST(ResponsesRequest, IsAChat) {
  const ParsedRequest request = parsed({{"instructions", "be kind"},
                                        {"model", "m"},
                                        {"max_output_tokens", 5},
                                        {"temperature", 0.5},
                                        {"top_p", 0.9},
                                        {"user", "me"},
                                        {"guard", true},
                                        {"stream", true}});
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(request)) << std::get<ApiError>(request).message;
  const auto& wanted = std::get<ApiRequest>(request);
  EXPECT_TRUE(wanted.stream);
  EXPECT_EQ(wanted.model, "m");
  const GenerationRequest& r = wanted.prompts.at(0);
  EXPECT_EQ(r.prompt, kTokenizer.encode("system:be kind\nuser:hi\n", true, true).value());
  EXPECT_EQ(r.sampling.temperature, 0.5F);
  EXPECT_EQ(r.sampling.top_p, 0.9F);
  EXPECT_EQ(r.generation.max_tokens, 5);
  EXPECT_EQ(r.client, "me");
  EXPECT_TRUE(r.guard);
  EXPECT_EQ(std::get<ApiRequest>(parsed(Json::object())).prompts.at(0).generation.max_tokens, -1);
}

TEST(ResponsesRequest, LeavesHintsAside) {
  EXPECT_EQ(wrong_parameter({{"store", true}, {"previous_response_id", nullptr}, {"background", false}}),
            "accepted");
  EXPECT_EQ(wrong_parameter({{"store", false},
                             {"include", {"reasoning.encrypted_content"}},
                             {"prompt_cache_key", "k"},
                             {"parallel_tool_calls", true},
                             {"truncation", "auto"},
                             {"text", {{"verbosity", "low"}, {"format", {{"type", "text"}}}}},
                             {"reasoning", {{"effort", "medium"}, {"summary", "auto"}}},
                             {"client_metadata", {{"id", "x"}}},
                             {"top_logprobs", 0}}),
            "accepted");
}

TEST(ResponsesRequest, RefusesByNameWhatWouldChangeTheResponse) {
  const Json refused = {{"previous_response_id", "resp_1"},
                        {"session", "travel"},
                        {"conversation", "conv_1"},
                        {"prompt", {{"id", "p"}}},
                        {"background", true},
                        {"top_logprobs", 2},
                        {"n", 2},
                        {"messages", Json::array()},
                        {"response_format", {{"type", "text"}}},
                        {"max_tokens", 5},
                        {"max_output_tokens", 0},
                        {"include", {"message.output_text.logprobs"}},
                        {"tools", 5},
                        {"tool_choice", "sometimes"},
                        {"mirostat", 2}};
  for (const auto& [name, value] : refused.items()) EXPECT_EQ(wrong_parameter({{name, value}}), name);
  EXPECT_EQ(wrong_parameter({{"reasoning", {{"effort", "huge"}}}}), "reasoning.effort");
  EXPECT_EQ(wrong_parameter({{"text", {{"format", {{"type", "xml"}}}}}}), "text.format.type");
  EXPECT_EQ(wrong_parameter({{"text", {{"format", {{"type", "json_schema"}}}}}}), "text.format.schema");
  const ParsedRequest request = parsed({{"previous_response_id", "resp_1"}});
  EXPECT_EQ(std::get<ApiError>(request).message,
            "'previous_response_id' is not supported: the server keeps no responses, so send the whole "
            "conversation as 'input'");
}

class ResponsesTools : public testing::TinyScheduler {
 protected:
  static ParsedRequest parse(const Json& more) {
    static const auto kTools = ChatTemplate::open(engine_->tokenizer(), KVANT_TEST_TEMPLATE).value();
    Json body = {{"input", "hi"}};
    body.update(more);
    return parse_responses_request(body, engine_->tokenizer(),
                                   {.n_vocab = engine_->n_vocab(), .chat_template = kTools.get()});
  }
  static Json tool(const char* name) {
    return {{"type", "function"},
            {"name", name},
            {"parameters",
             {{"type", "object"}, {"properties", {{"a", {{"enum", {1, 2}}}}}}, {"required", {"a"}}}},
            {"strict", false}};
  }
};

TEST_F(ResponsesTools, AreFunctionsAndOthersAreLeftOut) {
  const Json others = {tool("look"), {{"type", "web_search"}}, {{"type", "custom"}, {"name", "patch"}}};
  const ParsedRequest with_others = parse({{"tools", others}}), alone = parse({{"tools", {tool("look")}}});
  const std::string prompt = std::get<ApiRequest>(with_others).prompts.at(0).text;
  EXPECT_EQ(prompt, std::get<ApiRequest>(alone).prompts.at(0).text);
  EXPECT_NE(prompt.find(R"({"name": "look", "parameters": {"type": "object", )"), std::string::npos)
      << prompt;
}

// The model has random weights, so a completion contains calls only because its grammar demands them.
TEST_F(ResponsesTools, AreChosenByTheirName) {
  const Json tools = {tool("look"), tool("find"), {{"type", "web_search"}}};
  const auto wrong = [&](const Json& choice) {
    const ParsedRequest request = parse({{"tools", tools}, {"tool_choice", choice}});
    const auto* error = std::get_if<ApiError>(&request);
    return error == nullptr ? "accepted" : error->parameter;
  };
  EXPECT_EQ(wrong("auto"), "accepted");
  EXPECT_EQ(wrong("none"), "accepted");
  EXPECT_EQ(wrong({{"type", "function"}, {"name", "search"}}), "tool_choice.name");
  EXPECT_EQ(wrong({{"type", "function"}}), "tool_choice.name");
  EXPECT_EQ(wrong({{"type", "web_search"}}), "tool_choice.type");
  const Json others = Json::array({{{"type", "web_search"}}});
  EXPECT_EQ(std::get<ApiError>(parse({{"tools", others}, {"tool_choice", "required"}})).parameter,
            "tool_choice");
  for (const char* name : {"look", "find"}) {
    const Json body = {{"tools", tools},
                       {"tool_choice", {{"type", "function"}, {"name", name}}},
                       {"parallel_tool_calls", false},
                       {"max_output_tokens", 900},
                       {"seed", 1}};
    const ParsedRequest request = parse(body);
    const auto& wanted = std::get<ApiRequest>(request);
    ResponsesAnswer answer(body, "m", wanted.tool_format, engine_->tokenizer());
    const auto reply = ask(wanted.prompts).front();
    ASSERT_EQ(reply.failure, "");
    for (const AnswerPart& part : reply.parts) answer.part_events(part);
    answer.end_events({});
    ASSERT_EQ(answer.whole()["output"].size(), 1U);
    ASSERT_EQ(answer.whole()["output"][0]["type"], "function_call") << reply.text;
    EXPECT_EQ(answer.whole()["output"][0]["name"], name);
    EXPECT_EQ(answer.whole()["status"], "completed");
  }
}

TEST_F(ResponsesTools, OrAFormatHoldAnAnswer) {
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}};
  const Json text = {
      {"format", {{"type", "json_schema"}, {"name", "x"}, {"strict", true}, {"schema", schema}}}};
  EXPECT_NE(std::get<ApiRequest>(parse({{"text", text}})).prompts.at(0).grammar, nullptr);
  EXPECT_EQ(std::get<ApiError>(parse({{"text", text}, {"tools", {tool("look")}}})).parameter, "text.format");
}

}  // namespace
}  // namespace kvant::responses_request_test
