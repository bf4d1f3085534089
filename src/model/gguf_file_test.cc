#include "model/gguf_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "model/engine.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string failure_of(const std::string& path) {
  const auto file = GgufFile::open(path);
  return file.ok() ? "" : file.error().message;
}

TEST(GgufFile, ReadsMetadataOfTheRightTypeOnly) {
  TinyModel model;
  model.numbers = {{"rope.freq_base", 5e5F}};
  const auto written = write_tiny_model(model);
  const auto file = GgufFile::open(written->path()).value();
  EXPECT_EQ(file->text("general.architecture"), "llama");
  EXPECT_EQ(file->integer("llama.block_count"), 2);
  EXPECT_EQ(file->number("llama.rope.freq_base"), 5e5);
  EXPECT_EQ(file->number("llama.block_count"), 2.0);
  EXPECT_EQ(file->integers("llama.block_count"), std::vector<std::int64_t>{2});
  EXPECT_EQ(file->integers("tokenizer.ggml.token_type").size(), TinyModelWriter::kVocabulary);
  EXPECT_EQ(file->texts_count("tokenizer.ggml.tokens"), TinyModelWriter::kVocabulary);
  EXPECT_EQ(file->numbers_count("tokenizer.ggml.scores"), TinyModelWriter::kVocabulary);
  EXPECT_EQ(file->integer("general.architecture"), std::nullopt);
  EXPECT_EQ(file->integer("llama.rope.freq_base"), std::nullopt);
  EXPECT_EQ(file->text("llama.block_count"), std::nullopt);
  EXPECT_EQ(file->boolean("llama.block_count"), std::nullopt);
  EXPECT_EQ(file->texts_count("tokenizer.ggml.scores"), std::nullopt);
  EXPECT_EQ(file->text("no.such.key"), std::nullopt);
  EXPECT_TRUE(file->integers("no.such.key").empty());
  EXPECT_FALSE(file->has("no.such.key"));
}

TEST(GgufFile, GivesTensorsInsideTheMapping) {
  const auto written = write_tiny_model({});
  const auto file = GgufFile::open(written->path()).value();
  EXPECT_EQ(file->tensor("no.such.tensor"), nullptr);
  const std::string bytes = read_bytes(written->path());
  EXPECT_EQ(file->mapping_bytes(), bytes.size());
  for (const std::string& name : file->tensor_names()) {
    const ggml_tensor* t = file->tensor(name);
    ASSERT_NE(t, nullptr);
    const auto offset =
        static_cast<const char*>(file->tensor_data(t)) - static_cast<const char*>(file->mapping());
    EXPECT_LE(offset + ggml_nbytes(t), bytes.size());
  }
}

TEST(GgufFile, SaysWhatIsWrongWithAFileThatIsNoModel) {
  EXPECT_NE(failure_of("/no/such/file.gguf").find("No such file"), std::string::npos);
  EXPECT_NE(failure_of("/").find("not a regular file"), std::string::npos);
  const TinyFile file("broken.gguf");
  write_bytes(file.path(), "");
  EXPECT_NE(failure_of(file.path()).find("too short"), std::string::npos);
  write_bytes(file.path(), std::string(1000, 'x'));
  EXPECT_NE(failure_of(file.path()).find("not a GGUF"), std::string::npos);
  write_bytes(file.path(), "GGUF" + std::string(1000, '\xff'));
  EXPECT_NE(failure_of(file.path()).find("damaged"), std::string::npos);
}

// The four types come from a newer llama.cpp, from a fork, and from an older version.
TEST(GgufFile, NamesATensorTypeThatNobodyKnows) {
  const auto whole = write_tiny_model({});
  std::string bytes = read_bytes(whole->path());
  const std::string name = "blk.0.attn_q.weight";
  // The tensor's type follows its two dimensions.
  const std::size_t type = bytes.find(name) + name.size() + 4 + 2 * 8;
  ASSERT_EQ(bytes[type], static_cast<char>(GGML_TYPE_F32));
  const TinyFile other("other.gguf");
  for (const char number : {'\x8B', '\x7F', '\x04', '\x24'}) {
    bytes[type] = number;
    write_bytes(other.path(), bytes);
    const std::string failure = failure_of(other.path());
    EXPECT_NE(failure.find(fmt::format("'{}' of '{}' has the type {}", name, other.path(),
                                       static_cast<int>(static_cast<unsigned char>(number)))),
              std::string::npos)
        << failure;
    EXPECT_EQ(failure.find("damaged"), std::string::npos) << failure;
  }
}

TEST(GgufFile, DoesNotWaitForAPipe) {
  const TinyFile place("pipe.gguf");
  ASSERT_EQ(mkfifo(place.path().c_str(), 0600), 0);
  EXPECT_NE(failure_of(place.path()).find("not a regular file"), std::string::npos);
}

TEST(GgufFile, RefusesEveryTruncation) {
  const auto whole = write_tiny_model({});
  const std::string bytes = read_bytes(whole->path());
  const TinyFile cut("cut.gguf");
  for (std::size_t n = 0; n < bytes.size(); n += 1 + bytes.size() / 120) {
    write_bytes(cut.path(), bytes.substr(0, n));
    const auto engine = Engine::load(cut.path(), {.n_threads = 1});
    ASSERT_FALSE(engine.ok()) << n << " of " << bytes.size() << " bytes";
    EXPECT_NE(engine.error().message.find(cut.path()), std::string::npos);
  }
}

// With any single byte of the header damaged, the engine must load or report an error, and never crash.
TEST(GgufFile, SurvivesDamagedHeaders) {
  TinyModel model;
  model.n_layers = 1;
  const auto whole = write_tiny_model(model);
  const std::string bytes = read_bytes(whole->path());
  const std::size_t header =
      bytes.size() -
      static_cast<std::size_t>(Engine::load(whole->path(), {.n_threads = 1}).value()->weight_bytes());
  ASSERT_LT(header, bytes.size());
  const TinyFile damaged("damaged.gguf");
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string copy = bytes;
    const std::size_t at =
        std::uniform_int_distribution<std::size_t>(0, std::min(header, bytes.size()) - 1)(random);
    copy[at] = static_cast<char>(copy[at] ^ (1 << (random() % 8)));
    write_bytes(damaged.path(), copy);
    const auto engine = Engine::load(damaged.path(), {.n_threads = 1});
    if (engine.ok()) continue;
    ++refused;
    EXPECT_FALSE(engine.error().message.empty());
  }
  EXPECT_GT(refused, 25);
}

TEST(GgufFile, HashesMetadataAndWeights) {
  TinyModel model;
  const auto hash = [&] { return GgufFile::open(write_tiny_model(model)->path()).value()->content_hash(); };
  const std::uint64_t one = hash();
  EXPECT_EQ(hash(), one) << "of a copy";
  model.seed = 2;
  EXPECT_NE(hash(), one);
  model = {};
  model.trained_context = 2048;  // the file keeps its size, so the hash must depend on the metadata
  EXPECT_NE(hash(), one);
}

// The test imitates a fine-tune of one matrix. The headers are equal, and one bit differs in each value.
TEST(GgufFile, TellsApartModelsThatDifferInOneTensor) {
  const auto tiny = write_tiny_model(TinyModel{});
  const std::string bytes = read_bytes(tiny->path());
  const auto file = GgufFile::open(tiny->path()).value();
  std::set<std::uint64_t> hashes = {file->content_hash()};
  const std::vector<std::string> names = file->tensor_names();
  const TinyFile tuned("tuned.gguf");
  for (const std::string& name : names) {
    const ggml_tensor* tensor = file->tensor(name);
    const auto first =
        static_cast<const char*>(file->tensor_data(tensor)) - static_cast<const char*>(file->mapping());
    std::string copy = bytes;
    for (std::size_t i = 0; i < ggml_nbytes(tensor); i += 4)
      copy[first + static_cast<std::ptrdiff_t>(i)] =
          static_cast<char>(copy[first + static_cast<std::ptrdiff_t>(i)] ^ 1);
    write_bytes(tuned.path(), copy);
    hashes.insert(GgufFile::open(tuned.path()).value()->content_hash());
  }
  EXPECT_EQ(hashes.size(), names.size() + 1);
}

}  // namespace
}  // namespace kvant
