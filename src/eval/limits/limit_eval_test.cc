#include "eval/limits/limit_eval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/limits/limit_report.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// Generates the text that was recorded for a prompt, whatever tokens follow the prompt.
class RecitingSource : public LogitSource {
 public:
  struct Line {
    Tokens prompt, says;
  };
  RecitingSource(std::string name, int n_vocab, std::vector<Line> lines)
      : name_(std::move(name)), n_vocab_(n_vocab), lines_(std::move(lines)) {}

  const std::string& name() const override { return name_; }
  Status begin() override { return {}; }
  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    if (is_prompt) {
      const auto line = std::find_if(lines_.begin(), lines_.end(),
                                     [&](const Line& l) { return std::ranges::equal(l.prompt, tokens); });
      says_ = line == lines_.end() ? Tokens{} : line->says;
      said_ = 0;
    }
    for (int r = 0; r < logits.rows; ++r) {
      std::fill_n(logits.row(r), n_vocab_, 0.0F);
      if (said_ < says_.size()) logits.row(r)[says_[said_++]] = 1;
    }
    return {};
  }
  Status mark() override { return {}; }
  Status rewind() override { return {}; }
  CacheBits bits() const override { return {4, 5}; }
  PlanReport plan() const override { return {}; }

 private:
  std::string name_;
  int n_vocab_;
  std::vector<Line> lines_;
  Tokens says_;
  std::size_t said_ = 0;
};

class LimitEval : public ::testing::Test {
 protected:
  // Returns one token per character, without the leading space that the tokenizer adds.
  Tokens tokens(const std::string& text) const {
    Tokens all = tokenizer_->encode(text, false, false).value();
    if (tokenizer_->piece(all.front()) == " ") all.erase(all.begin());
    return all;
  }
  int n_vocab() const { return 300; }

  // Returns two documents, for 100 and 200 tokens, with one needle, one record and one summary each.
  std::vector<LimitDocument> documents() const {
    std::vector<LimitDocument> made;
    for (const int context : {100, 200}) {
      LimitDocument document{context, tokens("text"), {}, {}, tokens(std::to_string(context) + " about?")};
      document.needles.push_back({"passkey", 0.5, tokens(std::to_string(context) + " key?"), tokens("123")});
      document.records.push_back({tokens(std::to_string(context) + " json?"), "{\"a\":", "{\"a\":1}"});
      made.push_back(std::move(document));
    }
    return made;
  }
  // Returns the lines that a source recites for the document of one context.
  std::vector<RecitingSource::Line> lines(const std::string& context, const std::string& key,
                                          const std::string& json, const std::string& about) const {
    return {{tokens(context + " key?"), tokens(key)},
            {tokens(context + " json?"), tokens(json)},
            {tokens(context + " about?"), tokens(about)}};
  }
  std::unique_ptr<LogitSource> source(const std::string& name, std::vector<RecitingSource::Line> at_100,
                                      const std::vector<RecitingSource::Line>& at_200) const {
    at_100.insert(at_100.end(), at_200.begin(), at_200.end());
    return std::make_unique<RecitingSource>(name, n_vocab(), std::move(at_100));
  }
  LimitResult evaluate(const std::vector<std::unique_ptr<LogitSource>>& sources) const {
    return evaluate_limits(documents(), *tokenizer_, n_vocab(), sources,
                           {.contexts = {100, 200}, .answer_tokens = 10}, [] {})
        .value();
  }

  std::unique_ptr<TinyFile> file_ = write_tiny_model({});
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(file_->path()).value();
};

TEST_F(LimitEval, CountsWhatIsLeftOfWhatTheReferenceHasRight) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(
      source("whole", lines("100", "123", "1} x", "abcdefghij"), lines("200", "123", "2}", "klmnopqrst")));
  sources.push_back(
      source("lossy", lines("100", "123", "1}", "abcdefghij"), lines("200", "133", "3}", "klmXXXXXXX")));
  sources.push_back(source("broken", lines("100", "923", "1]}", "zbcdefghij"), lines("200", "123", "2", "")));
  const LimitResult result = evaluate(sources);
  const auto expect = [&](int row, int cell, LimitKind kind, int reference, int own, int kept) {
    const LimitCount& count = result.rows[row].cells[cell].count(kind);
    EXPECT_EQ(count.reference, reference) << row << cell << limit_name(kind);
    EXPECT_EQ(count.own, own) << row << cell << limit_name(kind);
    EXPECT_EQ(count.kept, kept) << row << cell << limit_name(kind);
  };
  for (const LimitKind kind : {LimitKind::needles, LimitKind::json, LimitKind::records}) {
    expect(0, 0, kind, 1, 1, 1);
    expect(1, 0, kind, 1, 1, 1);
    expect(2, 0, kind, 1, 0, 0);
  }
  expect(1, 1, LimitKind::needles, 1, 0, 0);
  // The text {"a":3} is valid JSON but differs from the reference's record.
  expect(1, 1, LimitKind::json, 1, 1, 1);
  expect(1, 1, LimitKind::records, 1, 0, 0);
  // The source never closes the object.
  expect(2, 1, LimitKind::json, 1, 0, 0);
  expect(0, 0, LimitKind::answer, 10, 10, 10);
  expect(1, 1, LimitKind::answer, 10, 3, 3);
  expect(2, 0, LimitKind::answer, 10, 0, 0);
}

TEST_F(LimitEval, SaysWhereCachesBreak) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(
      source("whole", lines("100", "123", "1}", "abcdefghij"), lines("200", "124", "2}", "klmnopqrst")));
  sources.push_back(
      source("lossy", lines("100", "123", "1}", "abcdefghi-"), lines("200", "124", "3}", "klmXXXXXXX")));
  sources.push_back(source("broken", lines("100", "923", "1]}", "zbcdefghij"), lines("200", "123", "2", "")));
  const LimitResult result = evaluate(sources);
  const LimitRow &lossy = result.rows[1], &broken = result.rows[2];
  EXPECT_EQ(limit_sentence(result, lossy, LimitKind::needles),
            // The reference's own answer is wrong at 200 tokens, so only 100 tokens count.
            "holds up to 100 tokens, the longest tested: 1 of 1 kept");
  EXPECT_EQ(limit_sentence(result, lossy, LimitKind::json),
            "holds up to 200 tokens, the longest tested: 1 of 1 kept");
  EXPECT_EQ(limit_sentence(result, lossy, LimitKind::records), "holds up to 100 tokens; at 200: 0 of 1 kept");
  EXPECT_EQ(limit_sentence(result, lossy, LimitKind::answer),
            "agrees with whole for 9 of 10 tokens at context 100, 3 of 10 tokens at context 200");
  // One lost token of ten is allowed.
  EXPECT_EQ(find_limit(lossy, LimitKind::answer).held, 100);
  EXPECT_EQ(limit_sentence(result, broken, LimitKind::needles), "breaks at 100 tokens: 0 of 1 kept");
  const auto json = limits_to_json(result, "model.gguf");
  EXPECT_EQ(json["schema"], "kvant.limits/1");
  EXPECT_EQ(json["contexts"], nlohmann::ordered_json({100, 200}));
  EXPECT_EQ(json["results"][1]["limits"]["records"]["held"], 100);
  EXPECT_EQ(json["results"][1]["limits"]["records"]["broken"], 200);
  EXPECT_TRUE(json["results"][1]["limits"]["json"]["broken"].is_null());
  EXPECT_EQ(json["results"][2]["cells"][0]["answer"]["kept"], 0);
}

TEST_F(LimitEval, JudgesNothingWhereTheReferenceHasNothingRight) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(source("whole", lines("100", "999", "no", "a"), lines("200", "999", "no", "a")));
  const LimitResult result = evaluate(sources);
  EXPECT_EQ(limit_sentence(result, result.rows[0], LimitKind::records), "not judged: whole gets none right");
}

TEST_F(LimitEval, DocumentsFillTheirContextAndHoldWhatIsAsked) {
  const auto made = make_limit_documents(*tokenizer_, "One. Two! Three?", {.contexts = {100, 3000, 5000}});
  ASSERT_TRUE(made.ok()) << made.error().message;
  // A context of 100 tokens is too small for a document.
  ASSERT_EQ(made->size(), 2U);
  for (const LimitDocument& document : *made) {
    std::string text;
    for (const std::int32_t token : document.tokens) text += tokenizer_->piece(token);
    EXPECT_LE(static_cast<int>(document.tokens.size()), document.context);
    EXPECT_GT(static_cast<int>(document.tokens.size()), document.context - 400);
    EXPECT_EQ(document.needles.size(), 6U);
    ASSERT_EQ(document.records.size(), 2U);
    for (const RecordQuestion& question : document.records)
      EXPECT_NE(text.find(question.json), std::string::npos) << question.json;
  }
}

}  // namespace
}  // namespace kvant
