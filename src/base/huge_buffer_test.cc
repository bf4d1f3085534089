#include "base/huge_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace kvant {
namespace {

TEST(HugeBuffers, HoldWhatWasWritten) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, (std::size_t{2} << 20) - 1,
                              std::size_t{2} << 20, (std::size_t{5} << 20) + 3}) {
    HugeBuffer buffer(n);
    ASSERT_EQ(buffer.size(), n);
    if (n > 0) std::memset(buffer.data(), 7, n);
    const HugeBuffer moved = std::move(buffer);
    ASSERT_EQ(moved.bytes().size(), n);
    for (const std::byte b : moved.bytes()) ASSERT_EQ(b, std::byte{7});
  }
}

}  // namespace
}  // namespace kvant
