#include "serve/prefix_disk.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "base/page_size.h"
#include "cache/cache_fixture.h"
#include "cache/slab_memory.h"
#include "model/tiny_model.h"
#include "recipe/recipe_fixture.h"
#include "serve/prefix_cache.h"

namespace kvant {
namespace {

using testing::append_tokens;
using testing::contents;
using testing::plan_for;
using testing::small_geometry;
using DiskTokens = std::vector<std::int32_t>;

constexpr std::int64_t kAllOfIt = std::int64_t{1} << 40;

DiskTokens counted_from(int first, int n) {
  DiskTokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// PrefixesOnDisk runs prefix caches in turn on the same cache and the same folder.
class PrefixesOnDisk : public ::testing::Test {
 protected:
  explicit PrefixesOnDisk(const std::string& recipe = "kvant-3bit", std::int64_t memory = 0)
      : plan_(plan_for(recipe, small_geometry())), cache_(plan_, memory) {}
  ~PrefixesOnDisk() override {
    prefixes_.reset();
    std::filesystem::remove_all(folder_.path());
  }

  void start(std::int64_t disk_limit = kAllOfIt, const std::string& model = "one") {
    prefixes_.reset();
    std::shared_ptr<const SessionFolder> folder =
        SessionFolder::open(folder_.path(), session_identity(*plan_, model, "")).value();
    prefixes_ = std::make_unique<PrefixCache>(
        cache_, kAllOfIt, std::make_unique<PrefixDisk>(cache_, folder, disk_limit, cuts_exactly(*plan_)));
  }
  void keep(const DiskTokens& tokens) {
    const SequenceId sequence = cache_.add();
    EXPECT_TRUE(append_tokens(cache_, sequence, static_cast<int>(tokens.size())).ok());
    EXPECT_TRUE(prefixes_->keep(sequence, tokens, 0).ok());
    cache_.free(sequence);
  }
  // Calls advance() until nothing is read or written. With is_short, kept prefixes go to the disk.
  void settle(bool is_short) {
    do {
      const auto done = prefixes_->advance(is_short);
      ASSERT_TRUE(done.ok());
      if (!*done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (prefixes_->is_busy());
  }
  void leave_to_disk() {
    settle(/*is_short=*/true);
    while (prefixes_->drop_oldest()) {
    }
  }
  // Waits for the disk and returns the kept prefix of a prompt. The caller frees the returned sequence.
  PrefixCache::Match find(const DiskTokens& prompt) {
    auto match = prefixes_->find(prompt, /*may_wait=*/true).value();
    if (match.coming.empty()) return match;
    EXPECT_TRUE(prefixes_->is_coming(match.coming));
    settle(/*is_short=*/false);
    EXPECT_FALSE(prefixes_->is_coming(match.coming));
    return prefixes_->find(prompt).value();
  }
  std::int64_t bytes_in_folder() const {
    std::int64_t sum = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path()))
      sum += static_cast<std::int64_t>(file.file_size());
    return sum;
  }

  TinyFile folder_{"prefixes"};
  std::shared_ptr<const Plan> plan_;
  Cache cache_;
  std::unique_ptr<PrefixCache> prefixes_;
};

class RecipeOnDisk : public PrefixesOnDisk, public ::testing::WithParamInterface<std::string> {
 protected:
  RecipeOnDisk() : PrefixesOnDisk(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(PrefixDisk, RecipeOnDisk, ::testing::ValuesIn(testing::product_recipes()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

// The fixture's keys and values depend only on a token's position.
TEST_P(RecipeOnDisk, GivesWhatReadingAllWouldHaveGiven) {
  start();
  keep(counted_from(0, 512));
  leave_to_disk();
  EXPECT_EQ(cache_.bytes().all(), 0);
  const auto match = find(counted_from(0, 700));
  ASSERT_EQ(match.n_tokens, 512);
  ASSERT_TRUE(append_tokens(cache_, match.sequence, 700 - 512).ok());
  Cache alone(plan_, 0);
  const SequenceId expected = alone.add();
  ASSERT_TRUE(append_tokens(alone, expected, 700).ok());
  EXPECT_EQ(contents(cache_, match.sequence), contents(alone, expected));
  EXPECT_EQ(prefixes_->disk()->hits, 1);
  cache_.free(match.sequence);
}

TEST_F(PrefixesOnDisk, AreHeldToTheLimitAndTheOldestGo) {
  start();
  keep(counted_from(0, 256));
  leave_to_disk();
  const std::int64_t one = bytes_in_folder();
  EXPECT_EQ(prefixes_->disk()->bytes, one);
  start(/*disk_limit=*/2 * one + one / 2);
  for (const int first : {1000, 2000, 3000}) {
    keep(counted_from(first, 256));
    leave_to_disk();
    EXPECT_LE(bytes_in_folder(), 2 * one + one / 2);
  }
  EXPECT_EQ(prefixes_->disk()->files, 2);
  EXPECT_EQ(prefixes_->disk()->dropped, 2);
  EXPECT_EQ(find(counted_from(1000, 300)).n_tokens, 0);
  const auto kept = find(counted_from(2000, 300));
  EXPECT_EQ(kept.n_tokens, 256);
  cache_.free(kept.sequence);
}

TEST_F(PrefixesOnDisk, AreReadAnewWhereAFileIsDamaged) {
  start();
  keep(counted_from(0, 256));
  leave_to_disk();
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    if (file.path().extension() != ".kvsession") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(file.file_size()) - 100);
    bytes.put('!');
  }
  EXPECT_EQ(find(counted_from(0, 300)).n_tokens, 0);
  EXPECT_EQ(prefixes_->disk()->files, 0);
  EXPECT_EQ(prefixes_->disk()->failures, 1);
  EXPECT_EQ(find(counted_from(0, 300)).n_tokens, 0);
  settle(false);
}

TEST_F(PrefixesOnDisk, OutliveTheServerButNoOtherModel) {
  start();
  keep(counted_from(0, 256));
  keep(counted_from(1000, 384));
  start();  // the previous prefix cache writes its prefixes when it ends
  EXPECT_EQ(prefixes_->disk()->files, 2);
  const auto match = find(counted_from(1000, 500));
  EXPECT_EQ(match.n_tokens, 384);
  cache_.free(match.sequence);
  start(kAllOfIt, "another");
  EXPECT_EQ(prefixes_->disk()->files, 0);
  EXPECT_EQ(find(counted_from(1000, 500)).n_tokens, 0);
}

TEST_F(PrefixesOnDisk, StayInMemoryWhereTheDiskTakesNothing) {
  start();
  std::filesystem::remove_all(folder_.path());
  keep(counted_from(0, 256));
  settle(/*is_short=*/true);
  EXPECT_EQ(prefixes_->disk()->failures, 1);
  EXPECT_EQ(prefixes_->disk()->bytes, 0);
  const auto match = find(counted_from(0, 300));
  EXPECT_EQ(match.n_tokens, 256);
  cache_.free(match.sequence);
}

TEST_F(PrefixesOnDisk, GoBeforeTheyAreWrittenWhereMemoryIsShort) {
  start();
  keep(counted_from(0, 256));
  ASSERT_TRUE(prefixes_->advance(/*is_short=*/true).ok());  // this starts a write
  EXPECT_TRUE(prefixes_->drop_oldest());
  EXPECT_EQ(cache_.bytes().all(), 0);
  settle(/*is_short=*/true);
  EXPECT_EQ(prefixes_->disk()->files, 0);
}

TEST_F(PrefixesOnDisk, LeaveOthersFilesAlone) {
  std::filesystem::create_directories(folder_.path());
  const std::filesystem::path others = std::filesystem::path(folder_.path()) / "notes.kvsession";
  std::ofstream(others) << "somebody's";
  start();
  EXPECT_EQ(prefixes_->disk()->files, 0);
  start();
  EXPECT_TRUE(std::filesystem::exists(others));
}

// At 512 tokens, the sequence takes less memory than the limit, but the sequence's file takes more.
TEST_F(PrefixesOnDisk, GoThoughAnotherIsLargerThanTheDisk) {
  start();
  keep(counted_from(0, 512));
  const std::int64_t in_memory = cache_.bytes().all();
  leave_to_disk();
  const std::int64_t limit = prefixes_->disk()->bytes - 1;
  ASSERT_LE(in_memory, limit);
  std::filesystem::remove_all(folder_.path());
  start(limit);
  keep(counted_from(0, 512));
  keep(counted_from(1000, 256));
  settle(/*is_short=*/true);
  EXPECT_EQ(prefixes_->disk()->files, 1);
  EXPECT_EQ(prefixes_->disk()->failures, 0);
}

TEST_F(PrefixesOnDisk, CountTheMemoryOfWhatTheyReplaceOnce) {
  start();
  keep(counted_from(0, 512));
  leave_to_disk();
  keep(counted_from(0, 256));
  const auto match = find(counted_from(0, 600));
  EXPECT_EQ(match.n_tokens, 512);
  cache_.free(match.sequence);
  EXPECT_EQ(prefixes_->size(), 1);
  EXPECT_EQ(prefixes_->bytes(), cache_.bytes().all());
}

class LittleMemoryWithDisk : public PrefixesOnDisk {
 protected:
  LittleMemoryWithDisk() : PrefixesOnDisk("kvant-3bit", 32 * static_cast<std::int64_t>(kSlabBytes)) {}
};

TEST_F(LittleMemoryWithDisk, GivesUpReadingWhatFindsNoRoom) {
  start();
  keep(counted_from(0, 512));
  leave_to_disk();
  const SequenceId other = cache_.add();
  while (append_tokens(cache_, other, kPageTokens).ok()) {
  }
  const int held = cache_.length(other);
  const auto match = prefixes_->find(counted_from(0, 600), /*may_wait=*/true).value();
  ASSERT_FALSE(match.coming.empty());
  EXPECT_FALSE(prefixes_->give_up_reading());  // the disk's thread still has the data
  Result<bool> done = true;
  while (done.ok() && prefixes_->is_busy()) done = prefixes_->advance(/*is_short=*/false);
  ASSERT_FALSE(done.ok());
  EXPECT_TRUE(done.error().is_shortage);
  EXPECT_TRUE(prefixes_->give_up_reading());
  EXPECT_FALSE(prefixes_->is_coming(match.coming));
  EXPECT_FALSE(prefixes_->is_busy());
  EXPECT_EQ(prefixes_->find(counted_from(0, 600)).value().n_tokens, 0);
  EXPECT_EQ(cache_.length(other), held);
  cache_.free(other);
  const auto later = find(counted_from(0, 600));  // the file must still exist
  EXPECT_EQ(later.n_tokens, 512);
  cache_.free(later.sequence);
}

// A longer prefix on disk replaces a shorter prefix if a sequence can be cut to the shorter prefix.
TEST_F(PrefixesOnDisk, AreNotStoredTwice) {
  ASSERT_TRUE(cuts_exactly(*plan_));
  start();
  keep(counted_from(0, 256));
  leave_to_disk();
  keep(counted_from(0, 512));
  leave_to_disk();
  EXPECT_EQ(prefixes_->disk()->files, 1);
  keep(counted_from(0, 384));
  leave_to_disk();
  EXPECT_EQ(prefixes_->disk()->written, 2);
  const auto match = find(counted_from(0, 300));
  EXPECT_EQ(match.n_tokens, 256);
  cache_.free(match.sequence);
}

}  // namespace
}  // namespace kvant
