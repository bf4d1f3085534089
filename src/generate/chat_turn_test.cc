#include "generate/chat_turn.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

// ChatML, with a default system message as some models have it; `forgets`: the last turn alone, as templates
// do that leave out what was thought before.
class ChatTokenizer : public Tokenizer {
 public:
  explicit ChatTokenizer(bool forgets) : forgets_(forgets) {}
  Result<std::vector<std::int32_t>> encode(const std::string&, bool, bool) const override {
    return std::vector<std::int32_t>();
  }
  std::string piece(std::int32_t) const override { return ""; }
  bool ends_generation(std::int32_t) const override { return false; }
  Result<std::string> chat_prompt(std::span<const ChatMessage> messages) const override {
    std::string text = "<|im_start|>system\nBe kind.<|im_end|>\n";
    for (const ChatMessage& m : forgets_ ? messages.last(1) : messages)
      text += "<|im_start|>" + m.role + "\n" + m.text + "<|im_end|>\n";
    return text + "<|im_start|>assistant\n";
  }

 private:
  bool forgets_;
};

TEST(ChatTurn, IsWhatComesAfterAnAnswer) {
  const auto turn = next_turn(ChatTokenizer(false), "And now?");
  ASSERT_TRUE(turn.ok());
  EXPECT_EQ(*turn, "<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTurn, IsRefusedWhereATemplateDoesNotGoOn) {
  const auto turn = next_turn(ChatTokenizer(true), "And now?");
  ASSERT_FALSE(turn.ok());
  EXPECT_NE(turn.error().message.find("--raw"), std::string::npos);
}

}  // namespace
}  // namespace kvant
