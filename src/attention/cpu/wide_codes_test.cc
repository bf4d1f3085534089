#include "attention/cpu/wide_codes.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/geometry.h"
#include "format/bit_packing.h"

namespace kvant::cpu {
namespace {

// A page of random codes, and the byte that channel c of token t stands for.
struct RandomPage {
  RandomPage(int bits, int x, int d) : x(x), d(d), codes(kPageTokens * d / x) {
    std::mt19937 random(bits + x + d);
    for (auto& code : codes) code = static_cast<std::uint16_t>(random() & ((1U << bits) - 1));
    table.resize(static_cast<std::size_t>(x) << bits);
    for (auto& byte : table) byte = static_cast<std::uint8_t>(random());
    packed.resize(
        packed_bytes(codes.size(), bits));  // no byte more: reading beyond is found by the sanitizers
    pack_codes(codes.data(), codes.size(), bits, packed.data());
    page = {reinterpret_cast<const std::uint8_t*>(packed.data()), table.data(), bits, x, d};
  }
  int byte(int t, int c) const { return table[codes[t * (d / x) + c / x] * x + c % x]; }

  int x, d;
  std::vector<std::uint16_t> codes;
  std::vector<std::uint8_t> table;
  std::vector<std::byte> packed;
  WideCodes page;
};

template <class Check>
void for_each_page(const Check& check) {
  for (const int bits : {10, 12}) {
    for (const int x : {4, 8}) {
      for (const int d : {64, 96, 128, 256}) check(RandomPage(bits, x, d));
    }
  }
}

TEST(WideCodes, LieAsQuadsOfChannelsOfSixteenTokens) {
  for_each_page([](const RandomPage& random) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(kPageTokens) * random.d);
    expand_for_scores(random.page, out.data());
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < random.d; ++c) {
        const int at = ((t / 16 * random.d / 4 + c / 4) * 16 + t % 16) * 4 + c % 4;
        ASSERT_EQ(out[at], random.byte(t, c))
            << random.page.bits << " bits, token " << t << ", channel " << c;
      }
    }
  });
}

TEST(WideCodes, LieAsOctetsOfTokens) {
  for_each_page([](const RandomPage& random) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(kPageTokens) * random.d);
    expand_for_mix(random.page, out.data());
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < random.d; ++c) {
        const int at = (t / 8 * random.d + c) * 8 + t % 8;
        ASSERT_EQ(out[at], random.byte(t, c))
            << random.page.bits << " bits, token " << t << ", channel " << c;
      }
    }
  });
}

}  // namespace
}  // namespace kvant::cpu
