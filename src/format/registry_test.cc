#include <thread>

#include "format/test_pages.h"

namespace kvant {
namespace {

TEST(FormatRegistry, FindsEveryMemberUnderItsOwnNameAndInOneFamilyOnly) {
  for (const std::string& name : format_names()) {
    const Format* format = find_format(name);
    ASSERT_NE(format, nullptr) << name;
    EXPECT_EQ(format->name(), name);
    EXPECT_EQ(find_format(name), format);
    int families = 0;
    for (const FormatFamily* family : format_families()) families += family->parse(name) != nullptr ? 1 : 0;
    EXPECT_EQ(families, 1) << name;
  }
}

TEST(FormatRegistry, ListsEachNameOnce) {
  std::vector<std::string> names = format_names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(FormatRegistry, FindsUnlistedMembersOfAFamily) {
  for (const char* name : {"tok4g16", "tok3g96", "tok2g256s", "prog3-paper", "vq-d8b16", "nvq-d2b6",
                           "gear3-tok4g32s", "hi8-tok3g96"})
    EXPECT_NE(find_format(name), nullptr) << name;
}

TEST(FormatRegistry, KnowsNothingElse) {
  for (const char* name : {"",         "bf",        "BF16",     "bf16 ",    " bf16",
                           "fp",       "fp8e4m3",   "tok",      "tok4",     "tok4g",
                           "tok4g0",   "tok4g12",   "tok4g520", "tok7g32",  "tok04g32",
                           "tok4g032", "tok4g32ss", "tok4g32S", "tok-4g32", "tok4g99999999999999999999",
                           "ch4g16",   "ch4g128s",  "ch9g128",  "ch4g256",  "ch4"}) {
    EXPECT_EQ(find_format(name), nullptr) << name;
  }
}

TEST(FormatRegistry, CombinesNoFormatsThatDontGoTogether) {
  for (const char* name : {"int8g128", "gear4", "gear0-ch2g128", "gear17-ch2g128", "gear4-bf16",
                           "gear4-gear4-ch2g128", "gear4-hi4-tok2g128", "hi4", "hi0-tok2g128",
                           "hi33-tok2g128", "hi4-ch2g128", "hi4-tok2g128s", "hi4-tok7g128", "hi4-tok2g12"}) {
    EXPECT_EQ(find_format(name), nullptr) << name;
  }
}

TEST(FormatRegistry, GivesEqualPointersToThreadsThatAskAtOnce) {
  std::vector<const Format*> found(8);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (const Format*& slot : found) threads.emplace_back([&slot] { slot = find_format("tok5g40"); });
  for (std::thread& thread : threads) thread.join();
  for (const Format* format : found) EXPECT_EQ(format, found[0]);
  EXPECT_NE(found[0], nullptr);
}

TEST(FormatRegistry, SuggestsTheNearestNames) {
  EXPECT_EQ(similar_format_names("tok4g23", 1).at(0), "tok4g32");
  EXPECT_EQ(similar_format_names("fp16", 2), (std::vector<std::string>{"f16", "bf16"}));
  EXPECT_TRUE(similar_format_names("completely-different", 3).empty());
  EXPECT_LE(similar_format_names("tok4", 3).size(), 3U);
}

}  // namespace
}  // namespace kvant
