#include "eval/retrieval/document.h"

#include <gtest/gtest.h>

#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

class RetrievalDocuments : public ::testing::Test {
 protected:
  std::string text_of(const Tokens& tokens) const {
    std::string text;
    for (const std::int32_t token : tokens) text += tokenizer_->piece(token);
    return text;
  }

  std::unique_ptr<TinyFile> file_ = write_tiny_model({});
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(file_->path()).value();
};

TEST_F(RetrievalDocuments, FillTheirContextAndNoMore) {
  const auto documents =
      make_retrieval_documents(*tokenizer_, "One. Two! Three?", {.contexts = {3000, 4000}, .documents = 2});
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  ASSERT_EQ(documents->size(), 4U);
  for (const RetrievalDocument& document : *documents) {
    std::size_t longest = 0;
    for (const RetrievalQuestion& question : document.questions)
      longest = std::max(longest, question.prompt.size() + question.answer.size());
    const int taken = static_cast<int>(document.tokens.size() + longest);
    EXPECT_LE(taken, document.context);
    // The longest sentence of the text has 7 tokens.
    EXPECT_GT(taken, document.context - 10);
  }
}

TEST_F(RetrievalDocuments, HidePassKeysAtTheDepthsAsked) {
  const auto documents =
      make_retrieval_documents(*tokenizer_, "One. Two! Three?", {.contexts = {6000}, .documents = 3});
  ASSERT_TRUE(documents.ok()) << documents.error().message;
  for (const RetrievalDocument& document : *documents) {
    const std::string text = text_of(document.tokens);
    const double at = static_cast<double>(text.find("The pass key is")) / static_cast<double>(text.size());
    EXPECT_NEAR(at, document.number / 2.0, 0.06);
    const RetrievalQuestion& asked = document.questions.front();
    EXPECT_EQ(asked.task, "passkey");
    const std::string answer = text_of(asked.answer);
    EXPECT_NE(text.find(answer.substr(answer.find_first_not_of(' '))), std::string::npos);
    EXPECT_TRUE(text_of(asked.prompt).ends_with("The pass key is"));
  }
}

TEST_F(RetrievalDocuments, RefuseAContextThatIsTooSmall) {
  const auto documents = make_retrieval_documents(*tokenizer_, "One.", {.contexts = {512}, .documents = 1});
  ASSERT_FALSE(documents.ok());
  EXPECT_NE(documents.error().message.find("too small"), std::string::npos);
}

TEST_F(RetrievalDocuments, RepeatATextThatIsShort) {
  const auto haystack = Haystack::from(*tokenizer_, "  One fish.\n\nTwo fish. ");
  ASSERT_TRUE(haystack.ok());
  ASSERT_EQ(haystack->size(), 2U);
  const auto taken = haystack->take(1, 40);
  ASSERT_GE(taken.size(), 3U);
  EXPECT_NE(text_of(taken[0]).find("Two fish."), std::string::npos);
  EXPECT_NE(text_of(taken[1]).find("One fish."), std::string::npos);
  EXPECT_EQ(taken[0], taken[2]);
}

}  // namespace
}  // namespace kvant
