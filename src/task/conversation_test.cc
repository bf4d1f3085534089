// Tests a conversation of a model with LongRoPE. The length of the sequence must decide which factors apply,
// and not the length of the context.
#include "task/conversation.h"

#include <gtest/gtest.h>

#include "model/random_tokens.h"
#include "model/tiny_variants.h"
#include "recipe/recipe.h"

namespace kvant {
namespace {

using Tokens = std::vector<std::int32_t>;

// Sequences of up to kShort tokens use LongRoPE's factors for short sequences.
constexpr int kShort = 256;

using testing::random_tokens;

class LongRopeConversation : public ::testing::TestWithParam<int> {
 protected:
  LongRopeConversation() {
    TinyModel model = model_of(variants(), "phi3_long_factors");
    model.matrix_type = GGML_TYPE_Q8_0;
    file_ = write_tiny_model(model);
  }

  // Returns the greedy tokens that follow the prompts. Each prompt is read after the completion of the
  // previous prompt.
  Tokens generate(int context, const std::vector<Tokens>& prompts, int n) {
    const auto session = Session::open({.model = file_->path()}, WeightMode::as_stored, context);
    EXPECT_TRUE(session.ok());
    const auto plan = session->plan(parse_recipe("bf16").value());
    auto sampler = Sampler::make({.temperature = 0});
    Conversation conversation(*session, session->backend(), *plan, std::move(*sampler), 1024, GetParam());
    const std::atomic<bool> interrupted{false};
    Tokens tokens;
    for (const Tokens& prompt : prompts) {
      EXPECT_TRUE(conversation.read(prompt, "", interrupted).ok());
      conversation.begin_answer({.max_tokens = n});
      while (!conversation.answer_end()) {
        EXPECT_TRUE(conversation.next().ok());
        tokens.push_back(conversation.answer().token());
      }
    }
    return tokens;
  }

  std::unique_ptr<TinyFile> file_;
};

INSTANTIATE_TEST_SUITE_P(Drafts, LongRopeConversation, ::testing::Values(0, 15),
                         ::testing::PrintToStringParamName());

TEST_P(LongRopeConversation, HasTheFactorsForShortSequencesInShortOnes) {
  const Tokens prompt = random_tokens(100, 1);
  EXPECT_EQ(generate(1024, {prompt}, 60), generate(kShort, {prompt}, 60));
}

TEST_P(LongRopeConversation, IsReadAgainWhenItOutgrowsThem) {
  const Tokens prompt = random_tokens(240, 2);
  const int n_short = kShort - 240 + 1, n_long = 30;
  Tokens read = prompt;
  const Tokens beginning = generate(kShort, {prompt}, n_short);
  read.insert(read.end(), beginning.begin(), beginning.end());
  Tokens expected = beginning;
  const Tokens end = generate(1024, {read}, n_long);
  expected.insert(expected.end(), end.begin(), end.end());
  EXPECT_EQ(generate(1024, {prompt}, n_short + n_long), expected);
}

TEST_P(LongRopeConversation, IsReadAgainWhenAPromptOutgrowsThem) {
  const Tokens first = random_tokens(150, 3), second = random_tokens(150, 4);
  const Tokens beginning = generate(kShort, {first}, 20);
  Tokens whole = first;
  whole.insert(whole.end(), beginning.begin(), beginning.end());
  whole.insert(whole.end(), second.begin(), second.end());
  const Tokens both = generate(1024, {first, second}, 20);
  EXPECT_EQ(Tokens(both.begin(), both.begin() + 20), beginning);
  EXPECT_EQ(Tokens(both.begin() + 20, both.end()), generate(1024, {whole}, 20));
}

}  // namespace
}  // namespace kvant
