#include "chat/chat_turn.h"

#include <gtest/gtest.h>

#include "model/tiny_model.h"

namespace kvant {
namespace {

Result<ChatTurn> turn_of(const std::string& source) {
  const auto file = write_tiny_model({});
  const auto tokenizer = Tokenizer::load(file->path()).value();
  const auto chat_template = ChatTemplate::make(*tokenizer, source, "the template").value();
  return next_turn(*chat_template, "And now?");
}

// The template is ChatML with a default system message, as some models have it.
const std::string kSystem = "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}";
const std::string kTurn = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}";
const std::string kBegin = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(ChatTurn, IsWhatComesAfterAnAnswer) {
  const auto turn = turn_of(kSystem + "{% for m in messages %}" + kTurn + "{% endfor %}" + kBegin);
  ASSERT_TRUE(turn.ok()) << turn.error().message;
  EXPECT_EQ(turn->text, "<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(turn->tokens.empty());
}

// This template renders only the last turn, as templates do that leave out earlier thoughts.
TEST(ChatTurn, IsRefusedWhereATemplateDoesNotGoOn) {
  const auto turn = turn_of("{% for m in messages[-1:] %}" + kTurn + "{% endfor %}" + kBegin);
  ASSERT_FALSE(turn.ok());
  EXPECT_NE(turn.error().message.find("--raw"), std::string::npos);
}

}  // namespace
}  // namespace kvant
