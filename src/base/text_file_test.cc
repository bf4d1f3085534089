#include "base/text_file.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvant::text_file_test {
namespace {

class TextFile : public ::testing::Test {
 protected:
  ~TextFile() override { std::filesystem::remove(path_); }
  Result<std::string> read(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return read_text_file(path_);
  }

 private:
  std::string path_ = ::testing::TempDir() + "/kvant_text_file_test_" + std::to_string(getpid());
};

TEST_F(TextFile, IsReadWhole) {
  EXPECT_EQ(read("a\r\n\nb").value(), "a\r\n\nb");
}

TEST_F(TextFile, AByteOrderMarkIsNoText) {
  EXPECT_EQ(read("\xef\xbb\xbfGr\xc3\xbc\xc3\x9f"
                 "e")
                .value(),
            "Gr\xc3\xbc\xc3\x9f"
            "e");
  EXPECT_EQ(read("a\xef\xbb\xbf").value(), "a\xef\xbb\xbf");
}

TEST_F(TextFile, WithNothingInItIsAnError) {
  EXPECT_FALSE(read("").ok());
  EXPECT_FALSE(read("\xef\xbb\xbf").ok());
}

}  // namespace
}  // namespace kvant::text_file_test
