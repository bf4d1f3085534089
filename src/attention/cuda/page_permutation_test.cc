#include "attention/cuda/page_permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "attention/cuda/head_dim.h"
#include "attention/cuda/page_format.h"
#include "format/format.h"

namespace kvant::cuda {
namespace {

std::vector<std::byte> random_bytes(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Calls check(name, device format, side, d, page bytes) for everything that a kernel reads.
template <class Check>
void for_each_case(const Check& check) {
  int cases = 0;
  for (const std::string& name : format_names()) {
    DeviceFormat device;
    PageFormat page;
    if (!find_device_format(name, device)) continue;
    for (const Side side : kSides) {
      for (const int d : kHeadDims) {
        if (!find_page_format(name, d, page)) continue;
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

// Pages that differ in one bit differ in one bit on the device too: no two bits share a place.
TEST(PagePermutation, MovesEveryBitToAPlaceOfItsOwn) {
  for_each_case([](const DeviceFormat& format, Side side, int d, std::size_t n) {
    std::vector<std::byte> page(n);
    std::vector<std::byte> device(round_up_16(static_cast<int>(n)));
    std::vector<std::byte> seen(device.size());
    std::mt19937 random(5);
    for (int trial = 0; trial < 20; ++trial) {
      const int bit = static_cast<int>(random() % (8 * n));
      std::fill(page.begin(), page.end(), std::byte{0});
      page[bit / 8] = std::byte{1} << (bit % 8);
      page_to_device(format, side, d, n, page.data(), device.data());
      int ones = 0;
      for (const std::byte byte : device) ones += std::popcount(std::to_integer<unsigned>(byte));
      EXPECT_EQ(ones, 1);
    }
  });
}

}  // namespace
}  // namespace kvant::cuda
