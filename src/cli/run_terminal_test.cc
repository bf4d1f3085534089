// Tests `kvant run` at a terminal: chats, pasted text and Ctrl-C.
#include <fcntl.h>
#include <sys/file.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/testing/program.h"
#include "cli/testing/terminal.h"

namespace kvant {
namespace {

using testing::Outcome;
using testing::Terminal;

class RunTerminal : public testing::Program {
 protected:
  void SetUp() override {
    testing::Program::SetUp();
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) GTEST_SKIP() << "this system has no pseudo-terminals";
    close(terminal);
  }
  std::string folder() const { return std::filesystem::path(path("x")).parent_path().string(); }
  static std::string chat(const std::string& words) {
    return std::string(KVANT_PROGRAM) + " run -m model.gguf -t 1 -cnv -n 2 " + words;
  }
  nlohmann::json result() const { return nlohmann::json::parse(read("result.json")); }
};

TEST_F(RunTerminal, ABlankLineDoesNotEndAChat) {
  Terminal terminal(folder(), chat("--session a.session"));
  terminal.wait_for("> ");
  terminal.type("abc\n\n \ndef\n");
  terminal.type("\x04");
  EXPECT_EQ(terminal.end(), 0) << terminal.screen();
  EXPECT_NE(terminal.screen().find("decode: 4 tokens"), std::string::npos) << terminal.screen();
  const std::string session = read("a.session");
  EXPECT_NE(session.find("user\nabc<|im_end|>"), std::string::npos);
  EXPECT_NE(session.find("user\ndef<|im_end|>"), std::string::npos);
}

TEST_F(RunTerminal, PastedTextIsOneTurn) {
  Terminal terminal(folder(), chat("--session a.session"));
  terminal.wait_for("\x1b[?2004h");
  terminal.wait_for("> ");
  terminal.type("see: \x1b[200~abc\n\ndef\n\x1b[201~\n");
  terminal.wait_for("> ");
  terminal.type("\x1b[200~ghi\x1b[201~ jkl\n\x04");
  EXPECT_EQ(terminal.end(), 0) << terminal.screen();
  EXPECT_NE(terminal.screen().find("\x1b[?2004l"), std::string::npos);
  EXPECT_EQ(terminal.screen().find("^["), std::string::npos) << "marks are visible";
  EXPECT_NE(terminal.screen().find("decode: 4 tokens"), std::string::npos) << terminal.screen();
  const std::string session = read("a.session");
  EXPECT_NE(session.find("user\nsee: abc\n\ndef<|im_end|>"), std::string::npos);
  EXPECT_NE(session.find("user\nghi jkl<|im_end|>"), std::string::npos);
}

TEST_F(RunTerminal, TheShellDoesNotGetWhatTheChatDidNotRead) {
  Terminal terminal(folder(), chat("") + "; IFS= read -r line; echo \"the shell got: $line\"");
  terminal.wait_for("> ");
  terminal.type("abc\n\x04rm -rf everything\n");
  terminal.wait_for("KV cache");
  terminal.wait_for("\n");
  terminal.type("ls\n");
  terminal.end();
  EXPECT_NE(terminal.screen().find("the shell got: ls"), std::string::npos) << terminal.screen();
}

TEST_F(RunTerminal, BytesThatAreNoTextDoNotEndAChat) {
  Terminal terminal(folder(), chat(""));
  terminal.wait_for("> ");
  terminal.type("caf\xe9\n");
  terminal.wait_for("the chat continues without this message");
  terminal.type("abc\n\x04");
  EXPECT_EQ(terminal.end(), 0);
  EXPECT_NE(terminal.screen().find("decode: 2 tokens"), std::string::npos) << terminal.screen();
  write("latin1", "caf\xe9\n");
  const Outcome piped = run("-c '" KVANT_PROGRAM " run -m model.gguf -t 1 -cnv -n 2 <latin1'", "sh");
  EXPECT_EQ(piped.code, 2);
  EXPECT_NE(piped.err.find("UTF-8"), std::string::npos) << piped.err;
}

TEST_F(RunTerminal, AnInterruptedPromptIsAFailureAndKeepsTheSession) {
  ASSERT_EQ(run("run -m model.gguf -t 1 --raw -p abc -n 5 --session a.session").code, 0);
  const std::string before = read("a.session");
  std::string text;
  for (int i = 0; i < 200; ++i) text += read("text.txt");
  write("long.txt", text);
  Terminal terminal(folder(), "exec " KVANT_PROGRAM
                              " run -m model.gguf -t 1 --raw -f long.txt -n 5 -c 400000 --session a.session "
                              "--json result.json");
  terminal.wait_for("restored without prefill");
  terminal.type("\x03");
  EXPECT_EQ(terminal.end(), 130);
  EXPECT_NE(terminal.screen().find("kvant: interrupted; the session is not saved"), std::string::npos)
      << terminal.screen();
  EXPECT_EQ(read("a.session"), before);
  EXPECT_EQ(result()["interrupted"], true);
  EXPECT_EQ(result()["session_saved"], false);
}

TEST_F(RunTerminal, AnInterruptedCompletionIsSavedAndSaysSo) {
  Terminal terminal(folder(), "exec " KVANT_PROGRAM
                              " run -m model.gguf -t 1 --raw -f text.txt -n 100000 -c 200000 "
                              "--session a.session --json result.json");
  terminal.wait_for("expect worse output");
  // The completion begins after the warning and the prompt of 1,400 tokens, and goes on for minutes.
  terminal.wait_for("\n");
  terminal.wait_for_more(100);
  terminal.type("\x03");
  EXPECT_EQ(terminal.end(), 130) << terminal.screen();
  EXPECT_NE(terminal.screen().find("kvant: interrupted; the session is saved"), std::string::npos)
      << terminal.screen();
  EXPECT_EQ(result()["interrupted"], true);
  EXPECT_EQ(result()["session_saved"], true);
  EXPECT_GT(result()["generated_tokens"], 0);
  const Outcome again =
      run("run -m model.gguf -t 1 --raw -p abc -n 1 --session a.session --json result.json");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(result()["interrupted"], false);
  EXPECT_GT(result()["session_tokens"], 1400);
}

TEST_F(RunTerminal, TwoRunsWithOneSessionBothKeepTheirConversation) {
  Terminal terminal(folder(), chat("--session a.session"));
  terminal.wait_for("> ");
  terminal.type("abc\n");
  terminal.wait_for("> ");
  ASSERT_EQ(run("run -m model.gguf -t 1 -n 2 -p other --session a.session").code, 0);
  const std::string others = read("a.session");
  EXPECT_NE(others.find("user\nother<|im_end|>"), std::string::npos);
  terminal.type("def\n");
  terminal.wait_for("this conversation is saved as 'a-2.session'");
  terminal.type("ghi\n\x04");
  EXPECT_EQ(terminal.end(), 0);
  EXPECT_EQ(read("a.session"), others);
  const std::string own = read("a-2.session");
  EXPECT_NE(own.find("user\ndef<|im_end|>"), std::string::npos);
  EXPECT_NE(own.find("user\nghi<|im_end|>"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("a-3.session")));
}

TEST_F(RunTerminal, ASessionOfARunningServerIsRefused) {
  ASSERT_EQ(run("run -m model.gguf -t 1 -n 2 -p abc --session a.kvsession --kv uniform-3bit").code, 0);
  Terminal server(folder(), "exec " KVANT_PROGRAM
                            " serve -m model.gguf -t 1 -c 256 --port 0 --sessions . --kv uniform-4bit");
  server.wait_for("this server can't continue 1 of 1 sessions");
  server.wait_for("continue it with --kv 'uniform-3bit'");
  const Outcome refused = run("run -m model.gguf -t 1 -n 2 -p abc --session a.kvsession --kv uniform-3bit");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("in the folder of a running server"), std::string::npos) << refused.err;
  server.wait_for("at http://");
  server.type("\x03");
  EXPECT_EQ(server.end(), 0) << server.screen();
  EXPECT_EQ(run("run -m model.gguf -t 1 -n 2 -p abc --session a.kvsession --kv uniform-3bit").code, 0);
}

}  // namespace
}  // namespace kvant
