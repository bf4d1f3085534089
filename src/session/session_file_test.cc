#include "session/session_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "cache/cache_fixture.h"
#include "compact/learn_predictor.h"
#include "model/engine.h"
#include "model/tiny_engines.h"
#include "model/tiny_model.h"
#include "recipe/recipe.h"
#include "recipe/recipe_fixture.h"

namespace kvant {
namespace {

const SessionIdentity kIdentity{
    .model = "0123456789abcdef", .model_name = "a model", .recipe = "k=bf16,v=bf16", .constants = "none"};

SessionContents made_up(std::size_t n_tokens, std::size_t n_bytes) {
  SessionContents contents{.text = "What was said: \"Grüße\"\n"};
  std::mt19937 random(1);
  for (std::size_t i = 0; i < n_tokens; ++i)
    contents.tokens.push_back(static_cast<std::int32_t>(random() % 50000));
  for (std::size_t i = 0; i < n_bytes; ++i) contents.sequence.push_back(static_cast<std::byte>(random()));
  return contents;
}

// Reads the whole file, or returns its error.
Result<LoadedSession> read_all(const std::string& path, const SessionIdentity& wanted = kIdentity) {
  const auto file = SessionFile::open(path, wanted);
  if (!file.ok()) return file.error();
  return file->contents();
}

std::string bytes_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void expect_refused(const std::string& path, const std::string& what) {
  const auto read = read_all(path);
  ASSERT_FALSE(read.ok()) << what;
  EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
  EXPECT_EQ(read.error().message.find('\n'), std::string::npos);
}

TEST(SessionFile, GivesBackWhatWasWritten) {
  const TinyFile file("session");
  for (const std::size_t n_bytes :
       {std::size_t{0}, std::size_t{5}, kSessionChunk, 2 * kSessionChunk + 7, 9 * kSessionChunk + 1}) {
    const SessionContents contents = made_up(n_bytes / 100, n_bytes);
    ASSERT_TRUE(write_session(file.path(), kIdentity, contents).ok());
    const auto read = read_all(file.path());
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->tokens, contents.tokens);
    EXPECT_EQ(read->text, contents.text);
    EXPECT_TRUE(std::ranges::equal(read->sequence.bytes(), contents.sequence));
    const auto opened = SessionFile::open(file.path(), kIdentity);
    EXPECT_EQ(opened->file_bytes(), static_cast<std::int64_t>(std::filesystem::file_size(file.path())));
    EXPECT_EQ(opened->n_tokens(), std::ssize(contents.tokens));
  }
}

// The format is described at https://github.com/huggingface/safetensors.
TEST(SessionFile, IsASafetensorsFile) {
  const TinyFile file("session");
  ASSERT_TRUE(write_session(file.path(), kIdentity, made_up(3, 100)).ok());
  const std::string bytes = bytes_of(file.path());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["recipe"], "k=bf16,v=bf16");
  std::uint64_t end = 0;
  for (const char* name : {"checksums", "tokens", "sequence", "text"}) {
    const auto& tensor = header[name];
    EXPECT_EQ(tensor["data_offsets"][0], end) << name;
    end = tensor["data_offsets"][1];
  }
  EXPECT_EQ(8 + length + end, bytes.size());
  EXPECT_EQ(header["tokens"]["dtype"], "I32");
  EXPECT_EQ(header["tokens"]["shape"], nlohmann::json({3}));
  EXPECT_EQ(header.size(), 5U);
}

TEST(SessionFile, IsRefusedWhereItIsCutShort) {
  const TinyFile file("session");
  ASSERT_TRUE(write_session(file.path(), kIdentity, made_up(20, 300)).ok());
  const std::string bytes = bytes_of(file.path());
  for (std::size_t n = bytes.size(); n-- > 0;) {
    std::filesystem::resize_file(file.path(), n);
    expect_refused(file.path(), fmt::format("{} bytes", n));
  }
  write_bytes(file.path(), bytes + '\0');
  expect_refused(file.path(), "one byte more");
}

TEST(SessionFile, IsRefusedWhereAnyBitDiffers) {
  const TinyFile file("session");
  ASSERT_TRUE(write_session(file.path(), kIdentity, made_up(20, 300)).ok());
  const std::string bytes = bytes_of(file.path());
  std::fstream damaged(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&damaged](std::size_t at, int byte) {
    damaged.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte)).flush();
  };
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    put(bit / 8, bytes[bit / 8] ^ 1 << bit % 8);
    expect_refused(file.path(), fmt::format("bit {}", bit));
    put(bit / 8, bytes[bit / 8]);
  }
  EXPECT_TRUE(read_all(file.path()).ok());
}

TEST(SessionFile, SaysWhichChunkIsDamaged) {
  const TinyFile file("session");
  ASSERT_TRUE(write_session(file.path(), kIdentity, made_up(20, 8 * kSessionChunk)).ok());
  const std::string bytes = bytes_of(file.path());
  const std::uint64_t first = bytes.size() - made_up(0, 0).text.size() - 8 * kSessionChunk;
  for (const std::size_t chunk : {0, 1, 3, 4, 7}) {
    std::string damaged = bytes;
    damaged[first + chunk * kSessionChunk + 1000 * (1 + chunk)] ^= 4;
    write_bytes(file.path(), damaged);
    const auto read = read_all(file.path());
    ASSERT_FALSE(read.ok());
    const std::string where = fmt::format("the bytes from {} on", first + chunk * kSessionChunk);
    EXPECT_NE(read.error().message.find(where), std::string::npos) << read.error().message;
  }
}

TEST(SessionFile, IsRefusedInOneLineWhateverItSays) {
  const TinyFile file("session");
  for (auto field : {&SessionIdentity::model, &SessionIdentity::model_name, &SessionIdentity::recipe,
                     &SessionIdentity::constants}) {
    SessionIdentity identity = kIdentity;
    identity.model = "another";
    identity.*field = "two\nlines\x1b[2J";
    ASSERT_TRUE(write_session(file.path(), identity, made_up(20, 300)).ok());
    const auto read = read_all(file.path());
    ASSERT_FALSE(read.ok());
    for (const char* control : {"\n", "\x1b"})
      EXPECT_EQ(read.error().message.find(control), std::string::npos) << read.error().message;
  }
}

TEST(SessionFile, IsRefusedWithTheFieldThatDiffers) {
  const TinyFile file("session");
  ASSERT_TRUE(write_session(file.path(), kIdentity, made_up(20, 300)).ok());
  const auto refusal = [&](const SessionIdentity& wanted) {
    const auto read = read_all(file.path(), wanted);
    return read.ok() ? "" : read.error().message;
  };
  SessionIdentity model = kIdentity, recipe = kIdentity, constants = kIdentity, name = kIdentity,
                  version = kIdentity;
  model.model = "fedcba9876543210";
  recipe.recipe = "k=f16,v=f16";
  constants.constants = "0123456789abcdef";
  name.model_name = "the same model by another name";
  version.version = "kvant.session/4";
  EXPECT_NE(refusal(model).find("another model: 'a model' (0123456789abcdef)"), std::string::npos)
      << refusal(model);
  EXPECT_NE(refusal(recipe).find(
                "another recipe: it began with bf16, not with k=f16,v=f16; continue it with --kv 'bf16'"),
            std::string::npos);
  EXPECT_NE(refusal(constants).find("other constants"), std::string::npos);
  EXPECT_NE(refusal(version).find("of version 'kvant.session/3'"), std::string::npos) << refusal(version);
  EXPECT_EQ(refusal(name), "");
}

TEST(SessionFile, WhatIsNotASessionIsRefused) {
  const TinyFile file("session");
  expect_refused(file.path(), "no file");
  expect_refused("/tmp", "a folder");
  for (const std::string& bytes :
       {std::string(), std::string("nonsense"), std::string(100, '\xff'), std::string(100, '\0'),
        std::string("\x02\0\0\0\0\0\0\0{}", 10), std::string("\x02\0\0\0\0\0\0\0[]", 10)}) {
    write_bytes(file.path(), bytes);
    expect_refused(file.path(), bytes);
  }
}

// A limit on file sizes stops the write, as a full disk would.
TEST(SessionFile, AWriteThatStopsHalfWayLeavesTheOldSession) {
  const TinyFile file("session");
  ASSERT_TRUE(write_session(file.path(), kIdentity, made_up(20, 300)).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{5000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = write_session(file.path(), kIdentity, made_up(20, 30000));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  ASSERT_FALSE(written.ok());
  EXPECT_TRUE(std::ranges::equal(read_all(file.path())->sequence.bytes(), made_up(20, 300).sequence));
}

// Restores sessions of a real engine, so a restored sequence can be compared by what the model computes from
// it.
class RestoredSession : public testing::TinyEngines {
 protected:
  using Logits = std::vector<float>;

  Logits step(Cache& cache, SequenceId s, std::span<const std::int32_t> tokens, bool is_prompt) {
    Logits logits(engine_->n_vocab());
    const EngineInput input{s, tokens, is_prompt, static_cast<int>(tokens.size()) - 1};
    EXPECT_TRUE(engine_->step(cache, *backend_, {&input, 1}, {logits.data(), 1, engine_->n_vocab()}).ok());
    return logits;
  }
  // Generates a completion of n tokens and takes the likeliest token each time.
  std::vector<Logits> answer(Cache& cache, SequenceId s, Logits logits, int n,
                             std::vector<std::int32_t>* tokens) {
    std::vector<Logits> all;
    for (int i = 0; i < n; ++i) {
      const auto token = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
      logits = step(cache, s, {&token, 1}, false);
      all.push_back(logits);
      if (tokens != nullptr) tokens->push_back(token);
    }
    return all;
  }

  static std::vector<std::int32_t> prompt(int n) {
    std::mt19937 random(n);
    std::vector<std::int32_t> tokens(n);
    for (std::int32_t& t : tokens)
      t = static_cast<std::int32_t>(3 + random() % (TinyModelWriter::kVocabulary - 3));
    return tokens;
  }
};

INSTANTIATE_TEST_SUITE_P(ProductRecipes, RestoredSession,
                         ::testing::Combine(::testing::ValuesIn(testing::product_recipes()),
                                            ::testing::Bool()));

TEST_P(RestoredSession, GoesOnBitForBit) {
  const auto plan = testing::plan_for(recipe(), engine_->geometry(), nullptr, backend_->page_order());
  const SessionIdentity identity = session_identity(*plan, engine_->fingerprint(), engine_->description());
  const TinyFile file("session");
  Cache cache(plan, 0), other(plan, 0);
  const SequenceId s = cache.add();
  SessionContents contents{.tokens = prompt(300), .text = "text"};
  answer(cache, s, step(cache, s, prompt(300), true), 100, &contents.tokens);
  contents.sequence = *cache.export_sequence(s);
  ASSERT_TRUE(write_session(file.path(), identity, contents).ok());

  const auto opened = SessionFile::open(file.path(), identity);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(*opened->tokens(), contents.tokens);
  const auto restored = import_session(other, *opened);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  for (const int n : {1, 140, 37}) {  // Each number is the length of a prompt, which a completion follows.
    const Logits expected = step(cache, s, prompt(n), true), found = step(other, *restored, prompt(n), true);
    ASSERT_EQ(found, expected);
    ASSERT_EQ(answer(other, *restored, found, 5, nullptr), answer(cache, s, expected, 5, nullptr));
  }
}

// Holds a compact file of a sequence of a tiny plan, with its coder.
struct CompactExample {
  CompactExample() {
    const SequenceId s = cache.add();
    EXPECT_TRUE(testing::append_tokens(cache, s, 400).ok());
    contents.sequence = *cache.export_sequence(s);
    coder = learned_coder();
  }
  std::shared_ptr<const SequenceCoder> learned_coder() const {
    const std::vector<std::vector<ChannelTurn>> no_turns(plan->geometry.n_layers);
    auto predictor = learn_predictor(*plan, {{contents.sequence}, no_turns}, 1);
    EXPECT_TRUE(predictor.ok());
    return std::make_shared<const SequenceCoder>(plan, std::move(*predictor));
  }
  Result<LoadedSession> read(std::shared_ptr<const SequenceCoder> with) const {
    const auto opened = SessionFile::open(file.path(), identity, std::move(with));
    if (!opened.ok()) return opened.error();
    return opened->contents();
  }
  std::shared_ptr<const Plan> plan = testing::plan_for("kvant-3bit", testing::small_geometry(64));
  Cache cache{plan, 0};
  SessionIdentity identity = session_identity(*plan, "model", "name");
  SessionContents contents{.tokens = std::vector<std::int32_t>(400, 7), .text = "text", .sequence = {}};
  std::shared_ptr<const SequenceCoder> coder;
  TinyFile file{"session"};
};

TEST(CompactSession, GivesBackWhatWasWritten) {
  CompactExample example;
  const auto written =
      write_session(example.file.path(), example.identity, example.contents, example.coder.get());
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(*written, static_cast<std::int64_t>(std::filesystem::file_size(example.file.path())));
  const auto opened = SessionFile::open(example.file.path(), example.identity, example.coder);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_TRUE(opened->is_compact());
  EXPECT_EQ(opened->sequence_bytes(), std::ssize(example.contents.sequence));
  const auto read = opened->contents();
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->tokens, example.contents.tokens);
  EXPECT_EQ(read->text, "text");
  EXPECT_TRUE(std::ranges::equal(read->sequence.bytes(), example.contents.sequence));
  // Plain files can be read with and without a coder.
  ASSERT_TRUE(write_session(example.file.path(), example.identity, example.contents).ok());
  EXPECT_TRUE(example.read(example.coder).ok());
  EXPECT_TRUE(example.read(nullptr).ok());
}

TEST(CompactSession, SaysThatItsPredictorIsMissing) {
  CompactExample example;
  ASSERT_TRUE(
      write_session(example.file.path(), example.identity, example.contents, example.coder.get()).ok());
  const auto without = example.read(nullptr);
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.error().message.find("predictor that this takes is missing"), std::string::npos)
      << without.error().message;
  const SequenceId s = example.cache.add();
  ASSERT_TRUE(testing::append_tokens(example.cache, s, 300).ok());
  example.contents.sequence = *example.cache.export_sequence(s);
  const auto other = example.read(example.learned_coder());
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("a different predictor"), std::string::npos) << other.error().message;
}

TEST(CompactSession, IsRefusedWhenItIsDamagedOrCutShort) {
  CompactExample example;
  const std::string path = example.file.path();
  ASSERT_TRUE(write_session(path, example.identity, example.contents, example.coder.get()).ok());
  const std::string bytes = bytes_of(path);
  const auto refused = [&](const std::string& changed) {
    write_bytes(path, changed);
    const auto read = example.read(example.coder);
    return !read.ok() && read.error().message.find('\n') == std::string::npos;
  };
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] ^= static_cast<char>(1 << (random() % 8));
    EXPECT_TRUE(refused(changed));
    EXPECT_TRUE(refused(bytes.substr(0, random() % bytes.size())));
  }
  std::string later = bytes;  // The bytes claim a version that does not exist yet.
  later.replace(later.find("kvant.session/4"), 15, "kvant.session/9");
  write_bytes(path, later);
  const auto read = example.read(example.coder);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("is of version 'kvant.session/9'"), std::string::npos)
      << read.error().message;
}

TEST(SessionIdentities, ATailThatARecipeWouldHaveAnywayMakesNoDifference) {
  const Geometry g = testing::small_geometry(32);
  const auto goes_on = [&](const std::string& found, const std::string& wanted) {
    const auto identity = [&](const std::string& recipe) {
      return session_identity(*testing::plan_for(recipe, g), "model", "name");
    };
    return check_identity(identity(found), identity(wanted), "x").ok();
  };
  EXPECT_TRUE(goes_on("k=ch4g32,v=tok4g32,tail=bf16", "k=ch4g32,v=tok4g32"));
  EXPECT_TRUE(goes_on("bf16", "bf16,tail=bf16"));
  EXPECT_TRUE(goes_on("k=ch4g32,v=tok4g32,tail=bf16,sink=4", "k=ch4g32,v=tok4g32,sink=4"));
  EXPECT_FALSE(goes_on("k=ch4g32,v=tok4g32,tail=tok8g32", "k=ch4g32,v=tok4g32"));
  EXPECT_FALSE(goes_on("f16,tail=bf16", "f16"));
  EXPECT_TRUE(goes_on("kvant-4bit", "kvant-4bit,tail=bf16"));
}

TEST(SessionIdentities, FilesThatNameNoTailHaveTheUsualOne) {
  const Geometry g = testing::small_geometry(32);
  const auto goes_on = [&](const std::string& written, const std::string& wanted) {
    SessionIdentity found = session_identity(*testing::plan_for(wanted, g), "model", "name");
    found.recipe = written;
    return check_identity(found, session_identity(*testing::plan_for(wanted, g), "model", "name"), "x").ok();
  };
  EXPECT_TRUE(goes_on("k=ch4g32,v=tok4g32", "k=ch4g32,v=tok4g32,tail=bf16"));
  EXPECT_TRUE(goes_on("k=f16,v=f16", "f16"));
  EXPECT_FALSE(goes_on("k=f16,v=f16", "f16,tail=bf16"));
  EXPECT_FALSE(goes_on("k=ch4g32,v=tok4g32", "k=ch4g32,v=tok4g32,tail=tok8g32"));
}

TEST(SessionIdentities, TellRecipesAndConstantsApart) {
  const Geometry g = testing::small_geometry(32);
  const auto identity = [&](const std::string& recipe, std::shared_ptr<const Constants> constants = nullptr) {
    return session_identity(*testing::plan_for(recipe, g, std::move(constants)), "model", "name");
  };
  EXPECT_EQ(identity("bf16").recipe, identity("bf16").recipe);
  EXPECT_NE(identity("bf16").recipe, identity("f16").recipe);
  EXPECT_NE(identity("kvant-4bit").recipe, identity("kvant-4bit,sink=8").recipe);
  // Both encoders write pages that are read alike, so the identity must not name the encoder.
  EXPECT_EQ(identity("kvant-4bit").recipe, identity("kvant-4bit,encode=plain").recipe);
  EXPECT_EQ(identity("bf16").constants, "none");
  const Recipe recipe = *parse_recipe("vecinfer-2bit");
  Constants changed = *testing::made_up_constants(recipe, g);
  const auto same = std::make_shared<Constants>(changed);
  changed.for_each([&](int layer, int head, Side side, const std::string& name, std::vector<float> values) {
    if (layer != 1 || head != 0 || side != Side::key) return;
    values.back() += 1e-3F;
    changed.set(layer, head, side, name, std::move(values));
  });
  EXPECT_EQ(identity("vecinfer-2bit", same).constants, identity("vecinfer-2bit").constants);
  EXPECT_NE(identity("vecinfer-2bit", std::make_shared<Constants>(changed)).constants,
            identity("vecinfer-2bit").constants);
}

}  // namespace
}  // namespace kvant
