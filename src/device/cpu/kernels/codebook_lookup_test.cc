#include "device/cpu/kernels/codebook_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "device/cpu/kernels/byte_kernels.h"
#include "format/bit_packing.h"
#include "format/code_order.h"

namespace kvant::cpu {
namespace {

// Holds a page of random codes, and knows the byte that channel c of token t stands for.
struct RandomPage {
  RandomPage(int bits, int x, int d) : bits(bits), x(x), d(d), codes(kPageTokens * d / x) {
    std::mt19937 random(bits + x + d);
    for (auto& code : codes) code = static_cast<std::uint16_t>(random() & ((1U << bits) - 1));
    table.resize(static_cast<std::size_t>(x) << bits);
    for (auto& byte : table) byte = static_cast<std::uint8_t>(random());
  }
  std::uint16_t code(int t, int group) const { return codes[t * (d / x) + group]; }
  int byte(int t, int c) const { return table[code(t, c / x) * x + c % x]; }

  int bits, x, d;
  std::vector<std::uint16_t> codes;
  std::vector<std::uint8_t> table;
};

// Returns the codes packed in rows. The result has no spare byte, so sanitizers find any read beyond its end.
std::vector<std::byte> packed(const RandomPage& page) {
  std::vector<std::byte> bytes(packed_bytes(page.codes.size(), page.bits));
  pack_codes(page.codes.data(), page.codes.size(), page.bits, bytes.data());
  return bytes;
}

// in_lanes() and in_octets() return the codes in the orders of code_order.h for byte codes, of K and of V.
std::vector<std::uint8_t> in_lanes(const RandomPage& page) {
  const int groups = page.d / page.x;
  std::vector<std::uint8_t> bytes(page.codes.size());
  for (int t = 0; t < kPageTokens; ++t) {
    for (int g = 0; g < groups; ++g) {
      const int tile = t / kLaneTokens * (groups / kLaneGroups) + g / kLaneGroups;
      bytes[(tile * kLaneTokens + t % kLaneTokens) * kLaneGroups + g % kLaneGroups] =
          static_cast<std::uint8_t>(page.code(t, g));
    }
  }
  return bytes;
}
std::vector<std::uint8_t> in_octets(const RandomPage& page) {
  const int groups = page.d / page.x;
  std::vector<std::uint8_t> bytes(page.codes.size());
  for (int t = 0; t < kPageTokens; ++t) {
    for (int g = 0; g < groups; ++g)
      bytes[(t / kOctet * groups + g) * kOctet + t % kOctet] = static_cast<std::uint8_t>(page.code(t, g));
  }
  return bytes;
}

void expect_quads(const std::vector<std::uint8_t>& out, const RandomPage& page, const std::string& what) {
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < page.d; ++c) {
      const int at = ((t / 16 * page.d / 4 + c / 4) * 16 + t % 16) * 4 + c % 4;
      ASSERT_EQ(out[at], page.byte(t, c)) << what << ", token " << t << ", channel " << c;
    }
  }
}
void expect_octets(const std::vector<std::uint8_t>& out, const RandomPage& page, const std::string& what) {
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < page.d; ++c) {
      const int at = (t / 8 * page.d + c) * 8 + t % 8;
      ASSERT_EQ(out[at], page.byte(t, c)) << what << ", token " << t << ", channel " << c;
    }
  }
}

// Calls check(lookup, page, what) for all instruction sets that this machine has, and for the widths, vectors
// and head sizes.
template <class Check>
void for_each_page(std::initializer_list<int> widths, std::initializer_list<int> vectors,
                   const Check& check) {
  for (const char* name : kInstructionSets) {
    const ByteKernels* kernels = find_kernels(name);
    if (kernels == nullptr) continue;
    for (const int bits : widths) {
      for (const int x : vectors) {
        for (const int d : {64, 96, 128, 256}) {
          check(kernels->lookup, RandomPage(bits, x, d),
                name + (": " + std::to_string(bits)) + " bits, d = " + std::to_string(d));
        }
      }
    }
  }
}

// channels_apart() returns the codebook channel by channel. filling_quads() returns the codebook with each
// centroid repeated until 4 bytes are full.
std::vector<std::uint8_t> channels_apart(const RandomPage& page) {
  std::vector<std::uint8_t> table;
  for (int c = 0; c < page.x; ++c) {
    for (int code = 0; code < 1 << page.bits; ++code) table.push_back(page.table[code * page.x + c]);
  }
  return table;
}
std::vector<std::uint8_t> filling_quads(const RandomPage& page) {
  const int entry = std::max(4, page.x);
  std::vector<std::uint8_t> table(static_cast<std::size_t>(entry) << page.bits);
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = page.table[i / entry * page.x + i % entry % page.x];
  return table;
}

std::vector<std::uint8_t> room_for(const RandomPage& page) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(kPageTokens) * page.d);
}

TEST(CodebookLookup, PutsWideCodesInQuadsAndOctets) {
  for_each_page({10, 12}, {4, 8},
                [](const CodebookLookup& lookup, const RandomPage& page, const std::string& what) {
                  const std::vector<std::byte> bytes = packed(page);
                  const WideCodes codes{reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                        page.table.data(), page.bits, page.x, page.d};
                  std::vector<std::uint8_t> out = room_for(page);
                  lookup.wide_for_scores(codes, out.data());
                  expect_quads(out, page, what);
                  lookup.wide_for_mix(codes, out.data());
                  expect_octets(out, page, what);
                });
}

TEST(CodebookLookup, PutsCodesOfAByteInQuadsAndOctets) {
  for_each_page({8}, {2, 4, 8},
                [](const CodebookLookup& lookup, const RandomPage& page, const std::string& what) {
                  if (page.d / page.x % kLaneGroups != 0) return;
                  const std::vector<std::uint8_t> apart = channels_apart(page), table = filling_quads(page);
                  const std::vector<std::uint8_t> k = in_lanes(page), v = in_octets(page);
                  std::vector<std::uint8_t> out = room_for(page);
                  lookup.bytes_for_scores({k.data(), apart.data(), table.data(), page.x, page.d}, out.data());
                  expect_quads(out, page, what);
                  lookup.bytes_for_mix({v.data(), apart.data(), table.data(), page.x, page.d}, out.data());
                  expect_octets(out, page, what);
                });
}

}  // namespace
}  // namespace kvant::cpu
