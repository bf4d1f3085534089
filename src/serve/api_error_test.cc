#include "serve/api_error.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "serve/messages_error.h"

namespace kvant::api_error_test {
namespace {

using Json = nlohmann::ordered_json;

Json openai(const ApiError& error) {
  return parse_json(error.body()).value()["error"];
}
Json anthropic(const ApiError& error) {
  return parse_json(messages_error(error, "req-1")).value()["error"];
}

TEST(ApiError, HasTheCodesOfOpenAI) {
  const std::pair<ApiError, const char*> errors[] = {
      {{.status = 401}, "invalid_api_key"},
      {{.status = 413}, "request_too_large"},
      {{.status = 431}, "request_too_large"},
      {{.status = 429}, "rate_limit_exceeded"},
      {{.status = 503}, "server_overloaded"},
      {{.status = 500}, "server_error"},
      {{.parameter = "top_p"}, "invalid_value"},
      {{.parameter = "audio", .code = kUnsupportedParameter}, "unsupported_parameter"},
      {unknown_model("gpt", {}), "model_not_found"},
      {context_overflow({9041, 2048}), "context_length_exceeded"}};
  for (const auto& [error, code] : errors) EXPECT_EQ(openai(error)["code"], code);
  EXPECT_EQ(unknown_model("gpt", {}).status, 404);
  EXPECT_EQ(openai({.status = 401})["type"], "invalid_request_error");
  EXPECT_TRUE(openai({.status = 401})["param"].is_null());
  EXPECT_EQ(openai({.parameter = "top_p"})["param"], "top_p");
}

// Client programs recognize an overflow by these patterns.
TEST(ApiError, SaysAnOverflowInTheWordsThatClientsLookFor) {
  const ApiError error = context_overflow({9041, 2048});
  EXPECT_EQ(error.status, 400);
  const std::string message = openai(error)["message"];
  EXPECT_NE(message.find("maximum context length is 2048 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("reduce the length of the messages"), std::string::npos) << message;
  EXPECT_EQ(anthropic(error)["message"], "prompt is too long: 9041 tokens > 2048 maximum");
  EXPECT_EQ(anthropic(error)["type"], "invalid_request_error");
}

TEST(ServedModels, AreFoundByAllTheirNames) {
  const std::vector<ServerInfo> served = {{.model = "a", .aliases = {"b", "c"}},
                                          {.model = "a:x", .aliases = {"b:x", "c:x"}}};
  EXPECT_EQ(recipe_of(served, ""), 0);
  EXPECT_EQ(recipe_of(served, "a"), 0);
  EXPECT_EQ(recipe_of(served, "c"), 0);
  EXPECT_EQ(recipe_of(served, "b:x"), 1);
  EXPECT_EQ(recipe_of(served, "gpt-4o"), -1);
  EXPECT_EQ(answering_name(served[0], "b"), "b");
  EXPECT_EQ(answering_name(served[0], ""), "a");
  EXPECT_EQ(answering_name(served[0], "gpt-4o"), "a");
  EXPECT_NE(unknown_model("gpt-4o", served).message.find("'b'"), std::string::npos);
  std::vector<ServerInfo> any = served;
  any.front().any_model = true;
  EXPECT_EQ(recipe_of(any, "gpt-4o"), 0);
  EXPECT_EQ(recipe_of(any, "b:x"), 1);
}

TEST(MessagesError, HasTheTypesAndStatusesOfAnthropic) {
  EXPECT_EQ(messages_error({.status = 503, .message = "later"}, "req-1"),
            R"({"type":"error","error":{"type":"overloaded_error","message":"later"},"request_id":"req-1"})");
  EXPECT_EQ(messages_status({.status = 503}), 529);
  EXPECT_EQ(messages_status({.status = 404}), 404);
  EXPECT_EQ(anthropic({.status = 429})["type"], "rate_limit_error");
  EXPECT_EQ(anthropic({.status = 404})["type"], "not_found_error");
  EXPECT_EQ(anthropic({.status = 413})["type"], "request_too_large");
  EXPECT_EQ(anthropic({.status = 500})["type"], "api_error");
}

}  // namespace
}  // namespace kvant::api_error_test
