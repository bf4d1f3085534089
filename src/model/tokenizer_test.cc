#include "model/tokenizer.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <optional>

#include "model/tiny_model.h"
#include "model/utf8.h"

namespace kvant {
namespace {

class TinyTokenizer : public ::testing::Test {
 protected:
  std::unique_ptr<TinyFile> file_ = write_tiny_model({});
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(file_->path()).value();
};

TEST_F(TinyTokenizer, TurnsTextIntoTokensAndBack) {
  const std::string text = "a small caf\xc3\xa9, \xf0\x9f\x98\x80 and\nmore.";
  const auto tokens = tokenizer_->encode(text, /*add_special=*/false, /*parse_special=*/false).value();
  std::string back;
  for (const std::int32_t t : tokens) back += tokenizer_->piece(t);
  EXPECT_EQ(back, " " + text);  // a text starts with a space in this vocabulary
}

TEST_F(TinyTokenizer, AddsBeginOfTextWhenAsked) {
  const auto with = tokenizer_->encode("abc", true, false).value();
  const auto without = tokenizer_->encode("abc", false, false).value();
  EXPECT_EQ(with.size(), without.size() + 1);
  EXPECT_EQ(with.front(), 1);
}

TEST_F(TinyTokenizer, ReadsSpecialTokensOnlyWhenAsked) {
  const auto parsed = tokenizer_->encode("</s>", false, true).value();
  EXPECT_EQ(parsed, std::vector<std::int32_t>{2});
  EXPECT_GT(tokenizer_->encode("</s>", false, false).value().size(), 1U);
  EXPECT_TRUE(tokenizer_->ends_generation(2));
  EXPECT_FALSE(tokenizer_->ends_generation(1));
}

TEST_F(TinyTokenizer, AddsNoSecondBeginOfText) {
  const auto once = tokenizer_->encode("<s>abc", /*add_special=*/true, /*parse_special=*/true).value();
  EXPECT_EQ(once.front(), 1);
  EXPECT_NE(once.at(1), 1);
  EXPECT_EQ(once, tokenizer_->encode("<s>abc", /*add_special=*/false, /*parse_special=*/true).value());
  // Plain text that looks like a control token stays text.
  EXPECT_GT(tokenizer_->encode("<s>abc", true, false).value().size(), once.size());
}

TEST_F(TinyTokenizer, KnowsTheTokensThatFillInTheMiddle) {
  EXPECT_FALSE(tokenizer_->fim_tokens().can_fill_in());
  ggml_context* tensors = nullptr;
  gguf_context* old_file = gguf_init_from_file(file_->path().c_str(), {/*no_alloc=*/false, &tensors});
  ASSERT_NE(old_file, nullptr);
  gguf_context* file = gguf_init_empty();
  gguf_set_kv(file, old_file);
  for (ggml_tensor* t = ggml_get_first_tensor(tensors); t != nullptr; t = ggml_get_next_tensor(tensors, t)) {
    if (gguf_find_tensor(old_file, t->name) >= 0) gguf_add_tensor(file, t);
  }
  for (const auto& [key, token] :
       {std::pair("fim_pre", 40), {"fim_suf", 41}, {"fim_mid", 42}, {"fim_sep", 43}})
    gguf_set_val_u32(file, fmt::format("tokenizer.ggml.{}_token_id", key).c_str(), token);
  const TinyFile with_fim("fim.gguf");
  const bool written = gguf_write_to_file(file, with_fim.path().c_str(), /*only_meta=*/false);
  gguf_free(file);
  gguf_free(old_file);
  ggml_free(tensors);
  ASSERT_TRUE(written);
  const FimTokens fim = Tokenizer::load(with_fim.path()).value()->fim_tokens();
  EXPECT_TRUE(fim.can_fill_in());
  EXPECT_EQ((std::vector{fim.prefix, fim.suffix, fim.middle, fim.file, fim.repository}),
            (std::vector{40, 41, 42, 43, -1}));
}

// For an unknown name, llama.cpp silently uses a general way to split texts, so kvant must report the name.
TEST(PreTokenizer, IsMissedAloud) {
  const auto loaded = [](const std::optional<std::string>& pre) {
    TinyModel model;
    model.pre_tokenizer = pre;
    const auto file = write_tiny_model(model);
    ::testing::internal::CaptureStderr();
    const auto tokenizer = Tokenizer::load(file->path());
    const std::string said = ::testing::internal::GetCapturedStderr();
    return tokenizer.ok() ? said : tokenizer.error().message;
  };
  EXPECT_NE(loaded("").find("doesn't name its pre-tokenizer"), std::string::npos);
  EXPECT_EQ(loaded("gpt-2"), "");
  EXPECT_EQ(loaded(std::nullopt), "");  // a vocabulary without merges needs no pre-tokenizer
  EXPECT_NE(loaded("of-next-year").find("'of-next-year'"), std::string::npos);
}

TEST_F(TinyTokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokens = tokenizer_->encode("abc\xff", false, false);
  ASSERT_FALSE(tokens.ok());
  EXPECT_NE(tokens.error().message.find("byte 3 (0xff)"), std::string::npos) << tokens.error().message;
}

TEST_F(TinyTokenizer, GivesNothingForTokensThatAreNotThere) {
  EXPECT_EQ(tokenizer_->piece(-1), "");
  EXPECT_EQ(tokenizer_->piece(1 << 30), "");
  EXPECT_TRUE(tokenizer_->encode("", false, false).value().empty());
}

TEST(TinyVocabulary, NamesTheFileIfACharacterHasNoToken) {
  TinyModel model;
  model.byte_tokens = false;
  const auto file = write_tiny_model(model);
  const auto tokenizer = Tokenizer::load(file->path()).value();
  EXPECT_TRUE(tokenizer->encode("abc", false, false).ok());
  const auto tokens = tokenizer->encode("caf\xc3\xa9", false, false);
  ASSERT_FALSE(tokens.ok());
  EXPECT_NE(tokens.error().message.find("has no token for a character"), std::string::npos)
      << tokens.error().message;
}

TEST(TinyVocabulary, IsRefusedIfLlamaCppCannotSplitTextsWithIt) {
  for (const char* kind : {"none", "rwkv"}) {
    TinyModel model;
    model.vocabulary = kind;
    const auto file = write_tiny_model(model);
    const auto tokenizer = Tokenizer::load(file->path());
    ASSERT_FALSE(tokenizer.ok()) << kind;
    EXPECT_NE(tokenizer.error().message.find(fmt::format("is '{}'", kind)), std::string::npos)
        << tokenizer.error().message;
  }
}

TEST(Tokenizer, SaysWhenThereIsNone) {
  const auto missing = Tokenizer::load("/no/such/file.gguf");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("/no/such/file.gguf"), std::string::npos);
}

TEST(Utf8, AcceptsExactlyWellFormedText) {
  for (const char* good : {"", "abc", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(first_invalid_utf8(good), std::nullopt) << good;
  }
  for (const char* bad :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x28\xa1"}) {
    EXPECT_EQ(first_invalid_utf8(std::string("ok ") + bad), 3U) << bad;
  }
  EXPECT_EQ(first_invalid_utf8(std::string_view("a\0b\xff", 4)), 3U);
}

}  // namespace
}  // namespace kvant
