#include "format/bit_packing.h"

#include "format/test_pages.h"

namespace kvant {
namespace {

TEST(BitPacking, LaysOutThreeBitCodesAsWorkedByHand) {
  // In binary, with the lowest bit first, the codes 5, 2, 7, 0, 1 are 101 010 111 000 100. The two bytes are
  // therefore 11010101 and 00010001.
  const std::uint16_t codes[] = {5, 2, 7, 0, 1};
  std::byte packed[2];
  pack_codes(codes, 5, 3, packed);
  EXPECT_EQ(packed[0], std::byte{0xd5});
  EXPECT_EQ(packed[1], std::byte{0x11});
}

TEST(BitPacking, PutsEveryBitWhereTheStreamHasIt) {
  std::mt19937 random(1);
  for (int bits = 1; bits <= kMaxCodeBits; ++bits) {
    for (const std::size_t n : {0, 1, 2, 7, 8, 9, 63, 64, 100, 1283}) {
      std::vector<std::uint16_t> codes(n);
      for (auto& code : codes) code = static_cast<std::uint16_t>(random() & ((1U << bits) - 1));
      const std::size_t size = (n * bits + 7) / 8;
      ASSERT_EQ(packed_bytes(n, bits), size);
      std::vector<std::byte> packed(size + 1, std::byte{0xa5});
      pack_codes(codes.data(), n, bits, packed.data());
      EXPECT_EQ(packed[size], std::byte{0xa5}) << bits << " bits, n = " << n;
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(code_from_stream(packed.data(), i, bits), codes[i]);
      if (n * bits % 8 != 0) {
        EXPECT_EQ(std::to_integer<int>(packed[size - 1]) >> (n * bits % 8), 0);
      }

      packed.resize(size);  // Sanitizers report reads past the end.
      packed.shrink_to_fit();
      std::vector<std::uint16_t> unpacked(n + 1, 0x1234);
      unpack_codes(packed.data(), n, bits, unpacked.data());
      EXPECT_EQ(unpacked[n], 0x1234);
      unpacked.resize(n);
      EXPECT_EQ(unpacked, codes) << bits << " bits, n = " << n;
    }
  }
}

}  // namespace
}  // namespace kvant
