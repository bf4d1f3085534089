// Tests which control tokens of a model's output reach the client.
#include <gtest/gtest.h>

#include "serve/api_request.h"
#include "serve/messages_api.h"
#include "serve/responses_request.h"
#include "serve/tiny_scheduler_fixture.h"

namespace kvant::control_tokens_test {
namespace {

using Json = nlohmann::ordered_json;
using Parse = ParsedRequest (*)(const Json&, const Tokenizer&, const ApiLimits&);

constexpr std::int32_t kStart = 1;  // <s>
constexpr const char* kWritten = "<s><s><s>";

class ControlTokensSaid : public testing::TinyScheduler {
 protected:
  // Requests a completion of three tokens, which are all the same control token.
  testing::ReadReply said(Parse parse, const Json& more) {
    static const auto kTemplate = ChatTemplate::open(engine_->tokenizer(), "").value();
    Json body = {{"logit_bias", {{std::to_string(kStart), 1000}}}, {"temperature", 0}};
    body.update(more);
    const ParsedRequest parsed =
        parse(body, engine_->tokenizer(), {.n_vocab = engine_->n_vocab(), .chat_template = kTemplate.get()});
    const auto* wrong = std::get_if<ApiError>(&parsed);
    if (wrong != nullptr) return {.failure = wrong->message};
    return ask(std::get<ApiRequest>(parsed).prompts).front();
  }
};

const Json kMessages = Json::array({{{"role", "user"}, {"content", "hi"}}});

TEST_F(ControlTokensSaid, AreNotShownUnlessAClientAsksForThem) {
  const std::vector<std::pair<Parse, Json>> requests = {
      {parse_chat_request, {{"messages", kMessages}, {"max_tokens", 3}, {"logprobs", true}}},
      {parse_completion_request, {{"prompt", "hi"}, {"max_tokens", 3}, {"logprobs", 0}}},
      {parse_messages_request, {{"messages", kMessages}, {"max_tokens", 3}}},
      {parse_responses_request, {{"input", "hi"}, {"max_output_tokens", 3}}}};
  for (auto [parse, body] : requests) {
    const auto hidden = said(parse, body);
    EXPECT_EQ(hidden.failure, "");
    EXPECT_EQ(hidden.text, "") << body.dump();
    EXPECT_EQ(hidden.end, GenerationEnd::length);
    const std::size_t n_reported = body.contains("logprobs") ? 3 : 0;
    EXPECT_EQ(hidden.tokens_of(0), std::vector<std::int32_t>(n_reported, kStart)) << body.dump();
    body["skip_special_tokens"] = false;
    EXPECT_EQ(said(parse, body).text, kWritten) << body.dump();
  }
}

TEST_F(ControlTokensSaid, EndACompletionAsStopTexts) {
  for (const bool skip : {true, false}) {
    const auto reply = said(parse_completion_request, {{"prompt", "hi"},
                                                       {"max_tokens", 3},
                                                       {"logprobs", 0},
                                                       {"stop", {"<s><s>"}},
                                                       {"skip_special_tokens", skip}});
    EXPECT_EQ(reply.end, GenerationEnd::finished);
    EXPECT_EQ(reply.text, "");
    EXPECT_TRUE(reply.tokens.empty());
  }
}

}  // namespace
}  // namespace kvant::control_tokens_test
