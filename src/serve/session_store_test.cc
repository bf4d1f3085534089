// Tests sessions of the scheduler with the fake engine. The tests cover which commands are allowed when, and
// what goes to memory and disk.
#include "serve/session_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "serve/scheduler.h"
#include "serve/serve_fixture.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;
using testing::FakeEngine;
using Tokens = std::vector<std::int32_t>;
using Kind = SessionError::Kind;

const SessionIdentity kIdentity{.model = "m", .model_name = "a model", .recipe = "r", .constants = "none"};

class Sessions : public ::testing::Test {
 protected:
  Sessions() { start(); }
  ~Sessions() override {
    scheduler_.reset();
    fs::remove_all(path_);
  }

  // Starts the scheduler, or restarts it with the same folder.
  void start(std::int64_t memory = 1 << 30, const SessionIdentity& identity = kIdentity,
             std::int64_t prefix_disk = 0) {
    scheduler_.reset();
    SchedulerOptions options{.context = 2048, .parallel = 4, .memory = memory};
    options.sequence_bytes = [](int n) { return std::int64_t{n} * 64; };
    auto folder = SessionFolder::open(path_, identity);
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    options.prefix_disk = prefix_disk;
    if (prefix_disk > 0) options.prefix_folder = SessionFolder::open(path_ + "/prefixes", identity).value();
    auto made = Scheduler::make(engine_, backend_, testing::plan_for("kvant-3bit", engine_.geometry()),
                                options, std::move(*folder));
    ASSERT_TRUE(made.ok()) << made.error().message;
    scheduler_ = std::move(*made);
  }
  SessionStore& sessions() { return *scheduler_->sessions(); }

  static GenerationRequest request(const std::string& session, Tokens prompt, int max_tokens = 10) {
    GenerationRequest request{.prompt = std::move(prompt), .session = session};
    request.sampling = {.temperature = 1, .seed = 7};
    request.generation = {.max_tokens = max_tokens, .wants_probabilities = true};
    return request;
  }
  std::shared_ptr<AnswerStream> submit(GenerationRequest request) {
    auto stream = std::make_shared<AnswerStream>();
    refusal_ = scheduler_->submit(std::move(request), stream);
    return stream;
  }
  void run() {
    while (!scheduler_->idle()) scheduler_->step();
  }
  struct Reply {
    std::string text;
    Tokens tokens;
    int cached = 0;
    std::optional<Error> failure;
  };
  Reply ask(GenerationRequest request) {
    const auto stream = submit(std::move(request));
    EXPECT_FALSE(refusal_) << refusal_->message;
    run();
    Reply reply;
    AnswerPart part;
    while (stream->read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
      reply.text += part.text;
      for (const ReportedToken& token : part.tokens) reply.tokens.push_back(token.chosen.token);
    }
    reply.cached = stream->usage().cached;
    reply.failure = stream->failure();
    return reply;
  }
  // Runs a conversation of one turn. Returns the conversation's tokens and the start of the next turn.
  Tokens begin(const std::string& session, int n_prompt = 200) {
    Tokens tokens(n_prompt, static_cast<std::int32_t>(5 + session.size() % 50));
    const Reply reply = ask(request(session, tokens));
    tokens.insert(tokens.end(), reply.tokens.begin(), reply.tokens.end());
    tokens.insert(tokens.end(), {1, 2, 3});
    return tokens;
  }
  // Starts a task, waits until the task is done, and returns the task's error if the task fails.
  std::optional<SessionError> wait(const std::function<void(SessionDone)>& start) {
    std::optional<std::optional<SessionError>> result;
    start([&](const std::optional<SessionError>& failure) { result = failure; });
    while (!result) scheduler_->step();
    return *result;
  }
  std::optional<SessionError> save(const std::string& name) {
    return wait([&](SessionDone done) { sessions().save(name, std::move(done)); });
  }
  std::optional<SessionError> restore(const std::string& name) {
    return wait([&](SessionDone done) { sessions().restore(name, std::move(done)); });
  }
  std::optional<SessionError> fork(const std::string& name, const std::string& to) {
    return wait([&](SessionDone done) { scheduler_->fork_session(name, to, std::move(done)); });
  }
  std::string file(const std::string& name) const { return path_ + "/" + name + ".kvsession"; }

  const std::string path_ = fs::temp_directory_path() / ("kvant_sessions_" + std::to_string(getpid()));
  FakeEngine engine_{testing::small_geometry(/*head_dim=*/16)};
  testing::NoBackend backend_;
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<Refusal> refusal_;
};

TEST(SessionNames, AreNeverPaths) {
  for (const char* name :
       {"a", "Chat-2", "_", "0123456789012345678901234567890123456789012345678901234567890123"})
    EXPECT_TRUE(is_session_name(name)) << name;
  for (const char* name : {"", ".", "..", "a/b", "a.b", "a b", "a\\b", "ä",
                           "01234567890123456789012345678901234567890123456789012345678901234"})
    EXPECT_FALSE(is_session_name(name)) << name;
}

TEST_F(Sessions, AFollowUpReadsOnlyWhatIsNew) {
  const Tokens next = begin("chat");
  // The session lacks only the newest token, which was never decoded.
  EXPECT_EQ(sessions().status("chat")->tokens, 209);
  const Reply reply = ask(request("chat", next));
  EXPECT_EQ(reply.cached, 209);
  EXPECT_EQ(engine_.steps.at(engine_.steps.size() - 10).prompt_tokens, 4);
  EXPECT_EQ(sessions().status("chat")->tokens, 213 + 9);
}

// The fake tokenizer encodes a letter as one token, while the engine generates other tokens for the same
// letter. The session must match by its text.
TEST_F(Sessions, TextsAreComparedWhereTokensDiffer) {
  GenerationRequest first = request("chat", *testing::FakeTokenizer().encode("Hello", true, true));
  first.text = "Hello";
  const Reply answer = ask(first);
  GenerationRequest next = first;
  next.text += answer.text + "andmore";
  next.prompt = *testing::FakeTokenizer().encode(next.text, true, true);
  ASSERT_FALSE(std::ranges::equal(answer.tokens, std::span(next.prompt).subspan(5, answer.tokens.size())));
  EXPECT_EQ(ask(next).cached, 5 + 9);
}

// Some tokenizers put a space before every text, so the tokens of a text decode to a different text. The
// prompt is then read without the session.
TEST_F(Sessions, ATextThatItsTokensDontSpellIsReadAsUsual) {
  GenerationRequest first = request("chat", *testing::FakeTokenizer().encode("Hello", true, true));
  first.text = "Hello";
  GenerationRequest next = first;
  next.text += ask(first).text + " and more";
  next.prompt = *testing::FakeTokenizer().encode(next.text, true, true);
  EXPECT_EQ(ask(next).cached, 0);
}

TEST_F(Sessions, AnotherPromptStartsTheSessionAnew) {
  begin("chat");
  EXPECT_EQ(ask(request("chat", Tokens(30, 9))).cached, 0);
  EXPECT_EQ(sessions().status("chat")->tokens, 39);
}

// The client does not get the stop text, and does not send it back.
TEST_F(Sessions, AStopTextIsNotKept) {
  const Reply whole = ask(request("", Tokens(30, 9), 20));
  GenerationRequest stopped = request("chat", Tokens(30, 9), 20);
  stopped.generation.stops = {whole.text.substr(10, 3)};
  const Reply reply = ask(stopped);
  EXPECT_EQ(reply.text, whole.text.substr(0, whole.text.find(stopped.generation.stops[0])));
  EXPECT_EQ(sessions().status("chat")->tokens, 30 + static_cast<int>(reply.text.size()));
}

TEST_F(Sessions, OneAnswerAtATime) {
  begin("chat");
  EXPECT_FALSE(save("chat"));
  const auto running = submit(request("chat", Tokens(300, 9), 50));
  scheduler_->step();
  submit(request("chat", Tokens(300, 5)));
  ASSERT_TRUE(refusal_);
  EXPECT_EQ(refusal_->reason, Refusal::Reason::conflict);
  EXPECT_EQ(sessions().remove("chat")->kind, Kind::in_use);
  EXPECT_EQ(restore("chat")->kind, Kind::in_use);
  EXPECT_FALSE(fork("chat", "copy"));  // the copy has the state before the running request
  EXPECT_EQ(sessions().status("copy")->tokens, 209);
  running->cancel();
  run();
  EXPECT_EQ(sessions().status("chat")->tokens, 209);
  EXPECT_FALSE(sessions().remove("chat"));
  EXPECT_FALSE(sessions().status("chat"));
  EXPECT_FALSE(fs::exists(file("chat")));
  submit([] {
    GenerationRequest several = request("chat", Tokens(30, 5));
    several.n_answers = 2;
    return several;
  }());
  EXPECT_TRUE(refusal_);
}

TEST_F(Sessions, AFailedAnswerLeavesTheSessionAsItWas) {
  const Tokens next = begin("chat");
  engine_.poison = 3;
  const Reply reply = ask(request("chat", next));
  EXPECT_TRUE(reply.failure);
  engine_.poison = -1;
  EXPECT_EQ(sessions().status("chat")->tokens, 209);
  engine_.poison = 40;
  EXPECT_TRUE(ask(request("new", Tokens(30, 40))).failure);
  EXPECT_FALSE(sessions().status("new"));
  EXPECT_EQ(sessions().list().size(), 1U);
}

TEST_F(Sessions, AreSavedAndRestored) {
  const Tokens next = begin("chat");
  EXPECT_FALSE(sessions().status("chat")->on_disk);
  EXPECT_EQ(restore("chat")->kind, Kind::missing);
  EXPECT_EQ(restore("other")->kind, Kind::missing);
  EXPECT_EQ(save("other")->kind, Kind::missing);
  EXPECT_FALSE(save("chat"));
  EXPECT_TRUE(sessions().status("chat")->is_saved);
  const Reply once = ask(request("chat", next));
  EXPECT_FALSE(sessions().status("chat")->is_saved);
  EXPECT_FALSE(restore("chat"));
  EXPECT_EQ(sessions().status("chat")->tokens, 209);
  EXPECT_TRUE(sessions().status("chat")->is_saved);
  const Reply again = ask(request("chat", next));
  EXPECT_EQ(again.tokens, once.tokens);
  EXPECT_EQ(again.cached, 209);
}

TEST_F(Sessions, AreNotSavedWhileTheyAreRestored) {
  const Tokens next = begin("chat");
  ASSERT_FALSE(save("chat"));
  ask(request("chat", next));  // memory now has a newer version than the file
  std::optional<SessionError> refused;
  EXPECT_FALSE(wait([&](SessionDone done) {
    sessions().restore("chat", std::move(done));
    sessions().save("chat", [&](const std::optional<SessionError>& failure) { refused = failure; });
  }));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, Kind::in_use);
  EXPECT_EQ(sessions().status("chat")->tokens, 209);
  EXPECT_FALSE(save("chat"));
}

TEST_F(Sessions, ForksGoOnByThemselves) {
  const Tokens next = begin("chat");
  EXPECT_FALSE(fork("chat", "other"));
  EXPECT_EQ(fork("chat", "other")->kind, Kind::exists);
  EXPECT_EQ(fork("none", "another")->kind, Kind::missing);
  const Reply one = ask(request("chat", next)), other = ask(request("other", next));
  EXPECT_EQ(one.tokens, other.tokens);
  EXPECT_EQ(other.cached, 209);
  EXPECT_FALSE(sessions().remove("chat"));
  EXPECT_EQ(sessions().status("other")->tokens, 222);
}

TEST_F(Sessions, SurviveARestart) {
  const Tokens next = begin("chat");
  const Reply expected = ask(request("chat", next));
  start();
  EXPECT_FALSE(sessions().status("chat")->in_memory);
  ASSERT_EQ(sessions().list().size(), 1U);
  EXPECT_EQ(sessions().list()[0].tokens, 222);
  EXPECT_GT(sessions().list()[0].bytes, 0);
  Tokens further = next;
  further.insert(further.end(), expected.tokens.begin(), expected.tokens.end());
  further.push_back(1);
  EXPECT_EQ(ask(request("chat", further)).cached, 222);
  EXPECT_TRUE(sessions().status("chat")->in_memory);
}

TEST_F(Sessions, OfAnotherRecipeAreRefusedByName) {
  const Tokens next = begin("chat");
  SessionIdentity other = kIdentity;
  other.recipe = "another";
  start(1 << 30, other);
  submit(request("chat", next));
  ASSERT_TRUE(refusal_);
  EXPECT_NE(refusal_->message.find("of another recipe"), std::string::npos) << refusal_->message;
  EXPECT_NE(sessions().list().at(0).problem.find("of another recipe"), std::string::npos);
  EXPECT_EQ(restore("chat")->kind, Kind::unusable);
  EXPECT_FALSE(sessions().remove("chat"));
}

TEST_F(Sessions, ADamagedFileIsNeverUsed) {
  const Tokens next = begin("chat");
  scheduler_.reset();
  {
    std::fstream damaged(file("chat"), std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(static_cast<std::streamoff>(fs::file_size(file("chat"))) / 2);
    damaged.put('\x55');
  }
  start();
  const Reply reply = ask(request("chat", next));
  ASSERT_TRUE(reply.failure);
  EXPECT_NE(reply.failure->message.find("damaged"), std::string::npos) << reply.failure->message;
  EXPECT_EQ(restore("chat")->kind, Kind::unusable);
  EXPECT_FALSE(sessions().status("chat")->in_memory);
}

TEST_F(Sessions, AFileThatWasTakenAwayIsWrittenAgain) {
  const Tokens next = begin("chat");
  ASSERT_FALSE(save("chat"));
  ASSERT_TRUE(fs::remove(file("chat")));
  EXPECT_FALSE(sessions().status("chat")->is_saved);
  start();
  EXPECT_EQ(ask(request("chat", next)).cached, 209);
}

TEST_F(Sessions, AFileThatWasReplacedIsReadAnew) {
  const Tokens next = begin("chat"), of_another = begin("another");
  ASSERT_NE(next, of_another);
  start();
  GenerationRequest compared = request("chat", next);
  ASSERT_FALSE(sessions().match(compared));
  EXPECT_EQ(compared.session_tokens, 209);
  fs::copy_file(file("another"), file("chat"), fs::copy_options::overwrite_existing);
  const Reply reply = ask(request("chat", of_another));
  EXPECT_FALSE(reply.failure);
  EXPECT_EQ(reply.cached, 209);
}

// If the server ended now, changes would be lost, so the scheduler must not be idle before the file is
// written.
TEST_F(Sessions, AreBusyUntilWhatWasAskedForIsDone) {
  begin("chat");
  EXPECT_TRUE(scheduler_->idle());
  bool saved = false;
  sessions().save("chat", [&](const auto& failure) { saved = !failure; });
  EXPECT_FALSE(scheduler_->idle());
  EXPECT_FALSE(saved);
  scheduler_.reset();
  EXPECT_TRUE(saved);
}

// A completion ends while the session's earlier state is being written. The first save must get the earlier
// state, and a later save must get the new state.
TEST_F(Sessions, GoOnWhileTheyAreSaved) {
  const Tokens next = begin("chat", 1500);
  int saved = 0;
  sessions().save("chat", [&](const auto& failure) { saved += !failure; });
  scheduler_->step();
  const auto running = submit(request("chat", next, 1));
  ASSERT_FALSE(refusal_);
  AnswerPart part;
  while (running->read(std::chrono::milliseconds(0), part) == AnswerStream::Next::nothing_yet)
    scheduler_->step();
  sessions().save("chat", [&](const auto& failure) { saved += !failure; });
  run();
  EXPECT_EQ(saved, 2);
  EXPECT_TRUE(sessions().status("chat")->is_saved);
  EXPECT_FALSE(restore("chat"));
  EXPECT_EQ(sessions().status("chat")->tokens, std::ssize(next));
}

// Other requests must get tokens while a session is read and written.
TEST_F(Sessions, HoldUpNobody) {
  const Tokens next = begin("chat", 1900);
  start();
  const auto other = submit(request("", Tokens(20, 5), 200));
  while (scheduler_->status().counters.generated_tokens < 10) scheduler_->step();
  bool restored = false;
  sessions().restore("chat", [&](const auto& failure) { restored = !failure; });
  while (!restored) {
    const std::int64_t before = scheduler_->status().counters.generated_tokens;
    scheduler_->step();
    ASSERT_TRUE(scheduler_->status().running_answers == 0 ||
                scheduler_->status().counters.generated_tokens > before);
  }
  run();
  EXPECT_TRUE(sessions().status("chat")->in_memory);
}

// The memory holds only one session, so each session goes to disk to make room for the next.
TEST_F(Sessions, MakeRoomForEachOther) {
  constexpr int kMemory = 17 << 18;
  start(kMemory);
  std::map<std::string, Tokens> next;
  for (const char* name : {"a", "bb", "ccc", "dddd", "eeeee"}) next[name] = begin(name, 1900);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<AnswerStream>> streams;
    for (const auto& [name, tokens] : next) {
      streams.push_back(submit(request(name, tokens, 1)));
      ASSERT_FALSE(refusal_) << refusal_->message;
    }
    run();
    for (const auto& stream : streams) {
      EXPECT_FALSE(stream->failure()) << stream->failure()->message;
      EXPECT_GT(stream->usage().cached, 1900);
    }
    for (auto& [name, tokens] : next) tokens.push_back(1 + round);
  }
}

// The memory holds only some of these sessions of 1900 tokens.
TEST_F(Sessions, TheLeastRecentlyUsedGoToTheDisk) {
  constexpr int kMemory = 17 << 18;  // 4.25 MiB
  constexpr int kSessions = 44;
  start(kMemory);
  std::vector<Tokens> next;
  next.reserve(kSessions);
  for (int i = 0; i < kSessions; ++i) next.push_back(begin("s" + std::string(i + 1, 'x'), 1900));
  EXPECT_LT(scheduler_->status().sessions, kSessions);
  EXPECT_GT(scheduler_->status().sessions, 0);
  EXPECT_FALSE(sessions().status("sx")->in_memory);
  EXPECT_TRUE(sessions().status("sx")->is_saved);
  EXPECT_EQ(sessions().list().size(), std::size_t{kSessions});
  for (int i = 0; i < kSessions; ++i) {
    const Reply reply = ask(request("s" + std::string(i + 1, 'x'), next[i]));
    EXPECT_FALSE(reply.failure);
    EXPECT_EQ(reply.cached, 1909) << i;
  }
  EXPECT_LE(scheduler_->status().cache_bytes, kMemory);
}

// The disk has a prefix of 1792 tokens, and a prompt can use 256 of them. The prefix must not displace
// sessions, because prefill can restore the prefix.
TEST_F(Sessions, DontMakeRoomForBeginningsOfPrompts) {
  // kMemory bytes hold the sessions, but the rest is too small for the prefix.
  constexpr int kMemory = (17 << 18) - (3 << 15), kDisk = 1 << 30;
  start(kMemory, kIdentity, kDisk);
  ask(request("", Tokens(1900, 3)));
  start(kMemory, kIdentity, kDisk);  // the previous scheduler writes its prefixes when it ends
  ASSERT_EQ(scheduler_->status().prefix_disk->files, 1);
  for (int i = 1; scheduler_->status().sessions == i - 1; ++i) begin(std::string(i, 's'), 1900);
  const Reply reply = ask(request("", Tokens(300, 3)));
  EXPECT_FALSE(reply.failure);
  EXPECT_EQ(reply.cached, 0);
  EXPECT_EQ(scheduler_->status().prefix_disk->hits, 0);
}

// A limit on file sizes simulates a full disk.
TEST_F(Sessions, AFullDiskIsAnErrorToTheOneWhoSaves) {
  const Tokens next = begin("chat", 1000);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto failure = save("chat");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, Kind::not_written);
  EXPECT_FALSE(sessions().status("chat")->is_saved);
  EXPECT_EQ(ask(request("chat", next)).cached, 1009);  // the session must still be in memory
  EXPECT_FALSE(save("chat"));
}

// Changes one byte of a file, or cuts the file to its first bytes.
void flip_middle_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path)) / 2;
  file.seekg(middle);
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(flipped);
}
void cut_short(const std::string& path) {
  fs::resize_file(path, 500);
}

TEST_F(Sessions, AreWrittenAgainOverAFileThatHasChanged) {
  for (const auto damage : {flip_middle_byte, cut_short}) {
    for (const bool is_restored : {false, true}) {
      const Tokens next = begin("chat");
      ASSERT_FALSE(save("chat"));
      EXPECT_TRUE(sessions().status("chat")->is_saved);
      const auto time = fs::last_write_time(file("chat"));
      damage(file("chat"));
      if (is_restored) {
        // A fault of the disk leaves the time of the file as it is.
        fs::last_write_time(file("chat"), time);
        EXPECT_EQ(restore("chat")->kind, Kind::unusable);
      } else {
        fs::last_write_time(file("chat"), time + std::chrono::seconds(1));
      }
      EXPECT_FALSE(sessions().status("chat")->is_saved);
      ASSERT_FALSE(save("chat"));
      EXPECT_TRUE(sessions().status("chat")->is_saved);
      start();
      EXPECT_EQ(ask(request("chat", next)).cached, 209);
      EXPECT_FALSE(sessions().remove("chat"));
    }
  }
}

TEST_F(Sessions, AreWrittenAtTheEndOverAFileThatHasChanged) {
  const Tokens next = begin("chat");
  ASSERT_FALSE(save("chat"));
  cut_short(file("chat"));
  start();
  EXPECT_EQ(ask(request("chat", next)).cached, 209);
}

TEST_F(Sessions, AreNotSavedWhereOnlyADamagedFileHasThem) {
  begin("chat");
  start();
  cut_short(file("chat"));
  EXPECT_FALSE(sessions().status("chat")->is_saved);
  EXPECT_EQ(save("chat")->kind, Kind::unusable);
}

TEST_F(Sessions, ThatCanNotBeWrittenAtTheEndAreLostOnce) {
  begin("chat");
  begin("kept");
  ASSERT_FALSE(save("kept"));
  fs::create_directory(file("chat"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(scheduler_->finish_sessions(), 1);
  EXPECT_EQ(scheduler_->finish_sessions(), 0);
  scheduler_.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string sentence = "the session 'chat' is lost";
  EXPECT_NE(said.find(sentence), std::string::npos) << said;
  EXPECT_EQ(said.find(sentence), said.rfind(sentence)) << said;
}

TEST_F(Sessions, AFolderHasOneServer) {
  const auto second = SessionFolder::open(path_, kIdentity);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another server"), std::string::npos);
}

TEST_F(Sessions, WhatAKilledServerLeftHalfWrittenIsRemoved) {
  const std::string half = file("chat") + ".1234.tmp";
  std::ofstream(half) << "half";
  start();
  EXPECT_FALSE(fs::exists(half));
  EXPECT_TRUE(sessions().list().empty());
}

}  // namespace
}  // namespace kvant
