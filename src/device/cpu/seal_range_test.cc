// Tests that sealing reports which pages have parameters at the end of half precision, with the numbers that
// the GPU library's test expects.
#include <gtest/gtest.h>

#include <string>

#include "device/cpu/test_layer.h"

namespace kvant::device::cpu::seal_range_test {
namespace {

constexpr int kProtected = 2;  // index of the protected token of each page

// Seals a page of keys and values of each sequence, and returns the number of pages out of range. The values
// lie in [-1, 1], except one token and channel of sequence 1.
std::uint32_t pages_out_of_range(const char* format, float loud, int loud_token) {
  TestLayer of({.d = 64, .n_kv_heads = 1, .n_sealed = 1, .n_tail = kPageTokens}, format, format);
  for (int seq = 0; seq < of.sizes.n_seqs; ++seq) {
    for (int side = 0; side < 2; ++side) {
      for (int token = 0; token < kPageTokens; ++token) {
        std::vector<float> row(of.sizes.d);
        for (int c = 0; c < of.sizes.d; ++c) row[c] = static_cast<float>((token * 7 + c * 13) % 41 - 20) / 20;
        if (seq == 1 && token == loud_token) row[3] = loud;
        write_row(row.data(), of.sizes.d, token, page_address(of.layer.tail, seq, 0, 0, side, 0));
      }
    }
  }
  const std::vector<std::uint32_t> masks(std::size_t{2} * kPageTokens / 32, 1U << kProtected);
  of.layer.masks = masks.data();
  of.layer.mask_seq_stride = of.layer.mask_head_stride = 1;
  std::uint32_t count = 0;
  of.layer.pages_out_of_range = &count;
  const std::vector<std::int32_t> first(of.sizes.n_seqs, 0);
  EXPECT_EQ(kvant_seal(&of.shape, &of.layer, first.data(), first.data(), nullptr), KVANT_OK)
      << kvant_last_error();
  return count;
}

TEST(CpuSealRange, CountsPagesOutOfRange) {
  for (const char* format :
       {"ch4g128", "ch2g32", "tok4g128", "tok8g32s", "lm3", "lm4u", "nvq-d4b8", "nvq-d8b12"}) {
    EXPECT_EQ(pages_out_of_range(format, 1, 5), 0U) << format;
    EXPECT_EQ(pages_out_of_range(format, -5e3F, 5), 0U) << format;
    EXPECT_EQ(pages_out_of_range(format, -1e10F, 5), 2U) << format;
    EXPECT_EQ(pages_out_of_range(format, -1e10F, kProtected), 0U) << format;
  }
}

TEST(CpuSealRange, CountsNothingWithoutHalfPrecisionParameters) {
  for (const char* format : {"fp8", "prog4", "tcq2", "tcq4", "vq-d4b8"})
    EXPECT_EQ(pages_out_of_range(format, 1e10F, 5), 0U) << format;
}

}  // namespace
}  // namespace kvant::device::cpu::seal_range_test
