#include "serve/answer_format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "serve/api_request.h"
#include "serve/api_response.h"
#include "serve/tiny_scheduler_fixture.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

using testing::ReadReply;

class AnswerFormatTest : public testing::TinyScheduler {
 protected:
  static Json body(const Json& more) {
    Json json = {{"prompt", "a word"}, {"max_tokens", 400}, {"temperature", 1}, {"seed", 1}};
    json.update(more);
    return json;
  }
  static ParsedRequest parse(const Json& more) {
    return parse_completion_request(body(more), engine_->tokenizer(), {.n_vocab = engine_->n_vocab()});
  }
  static GenerationRequest request(const Json& more) {
    const ParsedRequest parsed = parse(more);
    const auto* wrong = std::get_if<ApiError>(&parsed);
    KVANT_CHECK(wrong == nullptr, "a request that is refused");
    return std::get<ApiRequest>(parsed).prompts.front();
  }
};

const Json kPersonSchema = Json::parse(R"({"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 5},
    "age": {"type": "integer", "minimum": 3, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["red", "green", null]}, "maxItems": 3},
    "alive": {"type": "boolean"}},
    "required": ["name", "age", "tags"]})");

// Parses the text as JSON and compares it with kPersonSchema by hand, independently of the grammar.
void expect_person(const std::string& text) {
  // Clients see bytes that are not UTF-8 as U+FFFD.
  const std::string shown = Json::parse(response_text(text)).get<std::string>();
  const Json json = Json::parse(shown, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << text;
  ASSERT_TRUE(json.contains("name") && json.at("name").is_string()) << text;
  EXPECT_FALSE(json.at("name").get<std::string>().empty());
  ASSERT_TRUE(json.contains("age") && json.at("age").is_number_integer()) << text;
  EXPECT_TRUE(json.at("age") >= 3 && json.at("age") <= 120) << text;
  ASSERT_TRUE(json.contains("tags") && json.at("tags").is_array() && json.at("tags").size() <= 3) << text;
  for (const Json& tag : json.at("tags"))
    EXPECT_TRUE(tag == "red" || tag == "green" || tag.is_null()) << text;
  if (json.contains("alive")) {
    EXPECT_TRUE(json.at("alive").is_boolean()) << text;
  }
  EXPECT_EQ(json.size(), json.contains("alive") ? 4U : 3U) << text;
}

Json held_to(const Json& schema) {
  return {
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}}}};
}

TEST_F(AnswerFormatTest, EveryAnswerIsJsonOfTheSchema) {
  std::vector<GenerationRequest> requests;
  for (int seed = 0; seed < 8; ++seed) {
    requests.push_back(request(held_to(kPersonSchema)));
    requests.back().sampling.seed = seed;
    requests.back().sampling.temperature = seed == 7 ? 0 : 1;
  }
  for (const ReadReply& reply : ask(requests)) {
    EXPECT_EQ(reply.failure, "");
    EXPECT_EQ(reply.end, GenerationEnd::finished);
    expect_person(reply.text);
  }
}

TEST_F(AnswerFormatTest, IsTheSameInEachOfTheWaysToAskForIt) {
  const auto schema =
      ask({request(held_to(kPersonSchema)), request({{"json_schema", kPersonSchema}}),
           request({{"response_format", {{"type", "json_object"}, {"schema", kPersonSchema}}}})});
  EXPECT_EQ(schema[0].text, schema[1].text);
  EXPECT_EQ(schema[0].text, schema[2].text);
  const auto grammar = ask({request({{"grammar", R"(root ::= ("yes" | "no") "."?)"}})}).front();
  EXPECT_TRUE(grammar.text == "yes" || grammar.text == "no" || grammar.text == "yes." ||
              grammar.text == "no.");
}

TEST_F(AnswerFormatTest, ACutAnswerIsTheBeginningOfOne) {
  const auto reply =
      ask({request({{"response_format", {{"type", "json_object"}}}, {"max_tokens", 12}})}).front();
  EXPECT_TRUE(reply.text.starts_with('{'));
  EXPECT_TRUE(reply.end == GenerationEnd::length || Json::accept(reply.text));
}

TEST_F(AnswerFormatTest, EndsWhereItsGrammarHoldsUpTheOthers) {
  grammar_seconds_ = 0;
  const auto replies = ask({request({{"grammar", R"(root ::= [a-z]*)"}}), request({{"max_tokens", 40}})});
  EXPECT_NE(replies[0].failure.find("too ambiguous"), std::string::npos);
  EXPECT_TRUE(replies[0].failed_by_request);
  EXPECT_EQ(replies[1].failure, "");
}

TEST_F(AnswerFormatTest, ChangesNoAnswerBesideIt) {
  const GenerationRequest free = request({{"max_tokens", 40}, {"logprobs", 3}});
  const GenerationRequest held = request(held_to(kPersonSchema));
  const auto alone = ask({free}).front();
  const auto held_alone = ask({held}).front();
  const auto together = ask({held, free, held});
  EXPECT_EQ(together[1].text, alone.text);
  EXPECT_EQ(together[0].text, held_alone.text);
  EXPECT_EQ(together[2].text, held_alone.text);
  ASSERT_EQ(together[1].tokens.size(), alone.tokens.size());
  for (std::size_t i = 0; i < alone.tokens.size(); ++i)
    EXPECT_EQ(together[1].tokens[i].chosen.log_probability, alone.tokens[i].chosen.log_probability);
}

// A format restricts which tokens may be drawn but does not change the probabilities that the server reports.
TEST_F(AnswerFormatTest, ProbabilitiesAreTheModelsOwn) {
  GenerationRequest held = request(held_to(kPersonSchema)), free = request({{"max_tokens", 1}});
  for (GenerationRequest* r : {&held, &free}) {
    r->generation.wants_probabilities = true;
    r->generation.alternatives = engine_->n_vocab();
  }
  const auto replies = ask({held, free});
  ASSERT_FALSE(replies[0].tokens.empty());
  for (const ReportedToken& token : replies[0].tokens) {
    double total = 0;
    for (const TokenProbability& other : token.alternatives) {
      total += std::exp(other.log_probability);
      if (other.token == token.chosen.token) {
        EXPECT_EQ(other.log_probability, token.chosen.log_probability);
      }
    }
    EXPECT_NEAR(total, 1, 1e-5);  // the probabilities of the whole vocabulary are added up
  }
  const auto first = [](const ReadReply& reply) {
    std::vector<double> probabilities;
    for (const TokenProbability& t : reply.tokens.front().alternatives)
      probabilities.push_back(t.log_probability);
    return probabilities;
  };
  EXPECT_EQ(first(replies[0]), first(replies[1]));
}

TEST_F(AnswerFormatTest, FailsWhereTheModelCanSayNothingThatIsAllowed) {
  const auto replies = ask({request({{"grammar", "root ::= \"a\" <[5000]>"}}), request({{"max_tokens", 5}})});
  EXPECT_NE(replies[0].failure, "");
  EXPECT_EQ(replies[1].failure, "");
}

TEST_F(AnswerFormatTest, RefusesWhatIsNone) {
  for (const Json& wrong :
       {Json{{"response_format", 5}}, Json{{"response_format", {{"type", "xml"}}}},
        Json{{"response_format", {{"type", "json_schema"}}}},
        held_to({{"type", "number"}, {"multipleOf", 3}}), held_to(Json::array()),
        Json{{"json_schema", {{"type", "nothing"}}}}, Json{{"grammar", "root ::= other"}},
        Json{{"grammar", 5}}, Json{{"grammar", "root ::= \"a\""}, {"json_schema", Json::object()}}}) {
    const ParsedRequest parsed = parse(wrong);
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << wrong.dump();
    EXPECT_EQ(error->status, 400);
    EXPECT_FALSE(error->message.empty()) << wrong.dump();
  }
}

}  // namespace
}  // namespace kvant
