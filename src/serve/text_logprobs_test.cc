#include "serve/text_logprobs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "serve/serve_fixture.h"

namespace kvant::text_logprobs_test {
namespace {

using Json = nlohmann::ordered_json;

// PieceTokenizer has a given text for each token number.
class PieceTokenizer : public testing::FakeTokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::string piece(std::int32_t token) const override { return pieces_.at(token); }

 private:
  std::vector<std::string> pieces_;
};

ReportedToken token(std::int32_t token, std::vector<TokenProbability> alternatives = {}) {
  return {.chosen = {token, -0.5}, .alternatives = std::move(alternatives)};
}

TEST(TextLogprobs, OffsetsCountCharacters) {
  // The euro sign is split into two tokens.
  const PieceTokenizer tokenizer(
      {"Gr\xc3\xbc\xc3\x9f"
       "e",
       " \xe2\x82", "\xac", "!"});
  const std::vector<ReportedToken> tokens = {token(0), token(1), token(2), token(3)};
  std::int64_t offset = 0;
  const Json whole = text_logprobs(tokenizer, tokens, offset);
  EXPECT_EQ(whole["text_offset"], Json({0, 5, 6, 7}));
  EXPECT_EQ(offset, 8);
  std::int64_t parts_offset = 0;
  Json parts = Json::array();
  for (const ReportedToken& one : tokens)
    parts.push_back(text_logprobs(tokenizer, {&one, 1}, parts_offset)["text_offset"][0]);
  EXPECT_EQ(parts, whole["text_offset"]);
}

TEST(TextLogprobs, HiddenTokensHaveNoWidth) {
  const PieceTokenizer tokenizer({"ab", "<|x|>", "c"});
  ReportedToken hidden = token(1);
  hidden.is_hidden = true;
  const std::vector<ReportedToken> tokens = {token(0), hidden, token(2)};
  std::int64_t offset = 0;
  const Json json = text_logprobs(tokenizer, tokens, offset);
  EXPECT_EQ(json["text_offset"], Json({0, 2, 2}));
  EXPECT_EQ(json["tokens"][1], "<|x|>");
  EXPECT_EQ(offset, 3);
}

TEST(TextLogprobs, TokensBeforeTheTextHaveNoWidth) {
  const PieceTokenizer tokenizer({"<s>", "a", "b"});
  const std::vector<ReportedToken> tokens = {token(0), token(1), token(2)};
  std::int64_t offset = -3;
  EXPECT_EQ(text_logprobs(tokenizer, tokens, offset)["text_offset"], Json({0, 0, 1}));
}

TEST(TextLogprobs, EveryNameIsOneTokens) {
  const PieceTokenizer tokenizer({"a", "a", "\xe2\x82", "\xff", "a"});
  std::int64_t offset = 0;
  const std::vector<ReportedToken> tokens = {token(4, {{0, -0.1}, {1, -0.2}, {2, -0.3}, {3, -0.4}})};
  const Json json = text_logprobs(tokenizer, tokens, offset);
  EXPECT_EQ(json["tokens"][0], "a");
  EXPECT_EQ(json["top_logprobs"][0].dump(),
            R"({"token_id:0":-0.1,"token_id:1":-0.2,"bytes:\\xe2\\x82":-0.3,"bytes:\\xff":-0.4,"a":-0.5})");
}

TEST(TextLogprobs, TheChosenTokenIsAmongTheTop) {
  const PieceTokenizer tokenizer({"a", "b"});
  std::int64_t offset = 0;
  const std::vector<ReportedToken> tokens = {token(1), token(1, {{1, -0.5}})};
  EXPECT_EQ(text_logprobs(tokenizer, tokens, offset)["top_logprobs"].dump(), R"([{"b":-0.5},{"b":-0.5}])");
}

TEST(TextLogprobs, TheFirstTokenOfAPromptHasNone) {
  const PieceTokenizer tokenizer({"a"});
  std::int64_t offset = 0;
  const std::vector<ReportedToken> tokens = {{.chosen = {0, kNoProbability}}};
  EXPECT_EQ(text_logprobs(tokenizer, tokens, offset).dump(),
            R"({"tokens":["a"],"token_logprobs":[null],"top_logprobs":[null],"text_offset":[0]})");
}

}  // namespace
}  // namespace kvant::text_logprobs_test
