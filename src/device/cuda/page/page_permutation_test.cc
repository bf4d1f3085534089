#include "device/cuda/page/page_permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "device/cuda/common/limits.h"
#include "device/cuda/page/page_format.h"
#include "format/format.h"

namespace kvant::cuda {
namespace {

std::vector<std::byte> random_bytes(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Calls check(format, side, d, page_bytes) for every format that a kernel reads, with all sides and head
// sizes.
template <class Check>
void for_each_case(const Check& check) {
  int cases = 0;
  for (const std::string& name : format_names()) {
    DeviceFormat device;
    PageFormat page;
    if (!find_device_format(name, device)) continue;
    for (const Side side : kSides) {
      for (const int d : kHeadDims) {
        if (!find_page_format(name.c_str(), d, page)) continue;
        SCOPED_TRACE(name + " " + side_name(side) + " d=" + std::to_string(d));
        check(device, side, d, find_format(name)->page_bytes(d));
        ++cases;
      }
    }
  }
  EXPECT_GE(cases, 6 * 100);
}

TEST(PagePermutation, ReturnsTheSameBytesAfterThereAndBack) {
  for_each_case([](const DeviceFormat& format, Side side, int d, std::size_t n) {
    const std::vector<std::byte> page = random_bytes(n, 3);
    std::vector<std::byte> device(round_up_16(static_cast<int>(n)), std::byte{0xff});
    std::vector<std::byte> back(n, std::byte{0xff});
    page_to_device(format, side, d, n, page.data(), device.data());
    page_from_device(format, side, d, n, device.data(), back.data());
    EXPECT_EQ(page, back);
  });
}

// A series of pages identifies every bit of a page by its number. Page i holds digit i of the numbers of its
// bits. The last page holds only ones, which show which positions hold a bit. The contents of a device
// position over the series are then the number of the bit that was moved to this position.
TEST(PagePermutation, MovesEveryBitToAPlaceOfItsOwn) {
  std::set<std::tuple<bool, CodeOrder, int, int, Side, int>> done;  // one of each layout is enough
  for_each_case([&](const DeviceFormat& format, Side side, int d, std::size_t n) {
    const CodeLayout& layout = format.layout;
    if (!done.emplace(format.plain, layout.order, layout.bits, layout.channels, side, d).second) return;
    const std::size_t n_bits = 8 * n;
    const int n_digits = static_cast<int>(std::bit_width(n_bits - 1));
    const std::size_t device_bytes = round_up_16(static_cast<int>(n));
    std::vector<std::size_t> number(8 * device_bytes);
    std::vector<bool> taken(8 * device_bytes);
    for (int digit = 0; digit <= n_digits; ++digit) {
      std::vector<std::byte> page(n), device(device_bytes);
      for (std::size_t bit = 0; bit < n_bits; ++bit) {
        if (digit == n_digits || (bit >> digit & 1) != 0) page[bit / 8] |= std::byte{1} << (bit % 8);
      }
      page_to_device(format, side, d, n, page.data(), device.data());
      for (std::size_t place = 0; place < number.size(); ++place) {
        const bool one = (device[place / 8] >> (place % 8) & std::byte{1}) != std::byte{0};
        if (digit == n_digits) {
          taken[place] = one;
        } else {
          number[place] |= static_cast<std::size_t>(one) << digit;
        }
      }
    }
    std::vector<int> seen(n_bits);
    for (std::size_t place = 0; place < number.size(); ++place) {
      if (taken[place] && number[place] < n_bits) ++seen[number[place]];
    }
    EXPECT_EQ(std::count(taken.begin(), taken.end(), true), static_cast<std::ptrdiff_t>(n_bits));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(n_bits));
  });
}

// Kernels could read pages of clipped tokens. But a caller that reads a format may also seal in this format,
// and no kernel clips.
TEST(PageFormats, OfClippedTokensAreNotRead) {
  PageFormat page;
  EXPECT_TRUE(find_page_format("tok2g128", 128, page));
  EXPECT_NE(find_format("tok2g128c96"), nullptr);
  EXPECT_FALSE(find_page_format("tok2g128c96", 128, page));
}

}  // namespace
}  // namespace kvant::cuda
