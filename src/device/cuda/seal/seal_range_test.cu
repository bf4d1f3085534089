// Tests that sealing reports to the caller how many pages have values that exceed a format's half-precision
// parameters.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "kvant/kvant.h"

namespace kvant::cuda::seal_range_test {
namespace {

constexpr int kSeqs = 3;
constexpr int kProtected = 2;  // index of the protected token of each page

// Seals a page of keys and values of each sequence, and returns the number of pages out of range. The values
// lie in [-1, 1], except one token and channel of sequence 1.
class RangeCase {
 public:
  RangeCase(const std::string& format, int d) : format_(format), d_(d) {}

  std::uint32_t pages_out_of_range(float loud, int loud_token) const {
    std::vector<std::uint16_t> pages;
    for (int i = 0; i < kSeqs * 2; ++i) {
      const auto side = static_cast<PageSide>(i % 2);
      std::vector<std::uint16_t> page(static_cast<std::size_t>(kPageTokens) * d_);
      for (int token = 0; token < kPageTokens; ++token) {
        for (int channel = 0; channel < d_; ++channel) {
          float x = static_cast<float>((token * 7 + channel * 13) % 41 - 20) / 20;
          if (i / 2 == 1 && token == loud_token && channel == 3) x = loud;
          page[plain_index(side, d_, token, channel)] = bf16_from_float(x);
        }
      }
      pages.insert(pages.end(), page.begin(), page.end());
    }
    return seal(pages);
  }

 private:
  std::uint32_t seal(const std::vector<std::uint16_t>& tail_pages) const {
    const auto stride = static_cast<std::int64_t>(kvant_page_bytes(format_.c_str(), d_));
    const DeviceArray<std::uint16_t> tail(tail_pages);
    const DeviceArray<std::byte> sealed(kSeqs * 2 * stride);
    const DeviceArray<std::int32_t> table({0, 1, 2, 3, 4, 5}), first(std::vector<std::int32_t>(kSeqs, 0));
    std::vector<std::uint32_t> bits(kSeqs * 4);
    for (int seq = 0; seq < kSeqs; ++seq) bits[seq * 4] = 1U << kProtected;
    const DeviceArray<std::uint32_t> masks(bits), counter(std::vector<std::uint32_t>(1, 0));
    const Codebooks codebooks(format_, format_, d_, 1, 8);
    const DeviceArray<std::uint16_t> centroids(codebooks.packed[0]);
    const kvant_decode_shape shape{sizeof shape, kSeqs, 1, 1, d_, 1.0F, format_.c_str(), format_.c_str()};
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.tail = kvant_pages{table.get(), 2, 0, 0, 1, tail.get(), kPageTokens * d_ * 2, 0, 0, 0};
    layer.sealed = kvant_pages{table.get(), 2, 0, 0, 1, sealed.get(), stride, 0, 0, 0};
    layer.masks = masks.get();
    layer.mask_seq_stride = layer.mask_head_stride = 1;
    layer.key_codebooks = layer.value_codebooks = centroids.get();
    layer.key_codebook_stride = layer.value_codebook_stride = codebooks.size[0];
    layer.pages_out_of_range = counter.get();
    EXPECT_EQ(kvant_seal(&shape, &layer, first.get(), first.get(), nullptr), KVANT_OK);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    return counter.read()[0];
  }

  std::string format_;
  int d_;
};

class SealRange : public ::testing::TestWithParam<const char*> {};

TEST_P(SealRange, CountsPagesOutOfRange) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  for (const int d : kHeadDims) {
    const RangeCase sealing(GetParam(), d);
    EXPECT_EQ(sealing.pages_out_of_range(1, 5), 0U);
    EXPECT_EQ(sealing.pages_out_of_range(-5e3F, 5), 0U);
    // A zero, a symmetric scale or a gain exceeds 65504.
    EXPECT_EQ(sealing.pages_out_of_range(-1e10F, 5), 2U) << d;
    EXPECT_EQ(sealing.pages_out_of_range(-1e10F, kProtected), 0U) << d;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SealRange,
                         ::testing::Values("ch4g128", "ch2g32", "tok4g128", "tok8g32s", "lm3", "lm4u",
                                           "nvq-d4b8", "nvq-d8b12"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(SealRangeOfF32, HoldsEverythingWhereParametersHaveTheRangeOfF32) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  for (const char* format : {"fp8", "prog4", "tcq2", "tcq4"})
    EXPECT_EQ(RangeCase(format, 128).pages_out_of_range(1e10F, 5), 0U);
}

}  // namespace
}  // namespace kvant::cuda::seal_range_test
