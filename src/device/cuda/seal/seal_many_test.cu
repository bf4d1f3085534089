// Tests launches that seal more pages than the GPU processes at once.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "kvant/kvant.h"

namespace kvant::cuda::seal_many_test {
namespace {

// Returns tail pages of a sequence and KV head, [page][side]. Some pages resemble pages of recipes with a
// rotation, and some have outliers.
std::vector<std::uint16_t> tail_pages(int n_pages, int d) {
  constexpr int kUnique = 8;
  const std::size_t size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<std::uint16_t> unique(kUnique * 2 * size);
  for (int i = 0; i < kUnique; ++i) {
    for (const Side side : kSides) {
      const auto of = static_cast<PageSide>(side);
      const std::vector<float> values =
          page_values(side == Side::key && i % 2 == 0 ? Side::value : side, d, static_cast<std::uint32_t>(i),
                      i % 4 == 3 ? Values::outliers : Values::normal);
      std::uint16_t* page = unique.data() + (2 * i + static_cast<int>(side)) * size;
      for (int token = 0; token < kPageTokens; ++token)
        for (int channel = 0; channel < d; ++channel)
          page[plain_index(of, d, token, channel)] = bf16_from_float(values[token * d + channel]);
    }
  }
  std::vector<std::uint16_t> pages;
  for (int i = 0; i < n_pages; ++i) {
    const auto from = unique.begin() + static_cast<std::ptrdiff_t>(i % kUnique * 2 * size);
    pages.insert(pages.end(), from, from + static_cast<std::ptrdiff_t>(2 * size));
  }
  return pages;
}

class SealingOfManyPages : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(SealingOfManyPages, GivesTheBytesOfOneAfterAnother) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [format, d] = GetParam();
  const int n_pages = 2 * gpu_or_h100().multiprocessors;
  const auto bytes = static_cast<std::int64_t>(kvant_page_bytes(format, d));
  const DeviceArray<std::uint16_t> tail(tail_pages(n_pages, d));
  std::vector<std::int32_t> ids(n_pages);
  std::iota(ids.begin(), ids.end(), 0);
  // The table also serves as the list of page numbers, because each page keeps its place.
  const DeviceArray<std::int32_t> table(ids);
  const DeviceArray<std::byte> together(std::vector<std::byte>(n_pages * 2 * bytes)),
      alone(std::vector<std::byte>(n_pages * 2 * bytes));
  const kvant_decode_shape shape{sizeof shape, 1, 1, 1, d, 1.0F, format, format};
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.tail.table = layer.sealed.table = table.get();
  layer.tail.pool = tail.get();
  layer.tail.side_offset = std::int64_t{kPageTokens} * d * 2;
  layer.tail.page_stride = 2 * layer.tail.side_offset;
  layer.sealed.side_offset = bytes;
  layer.sealed.page_stride = 2 * bytes;
  kvant_seal_range range{};
  range.struct_size = sizeof range;
  const auto seal = [&](int first, int n, const DeviceArray<std::byte>& to) {
    layer.sealed.pool = to.get();
    range.tail_page = range.sealed_page = table.get() + first;
    range.max_pages = n;
    ASSERT_EQ(kvant_seal_pages(&shape, &layer, &range, nullptr), KVANT_OK) << kvant_last_error();
  };
  seal(0, n_pages, together);
  for (int i = 0; i < n_pages; ++i) seal(i, 1, alone);
  EXPECT_EQ(together.read(), alone.read());
}

INSTANTIATE_TEST_SUITE_P(Formats, SealingOfManyPages,
                         ::testing::Combine(::testing::Values("tcq2", "tcq3", "tcq4", "ch4g128"),
                                            ::testing::ValuesIn(kHeadDims)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_d" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace kvant::cuda::seal_many_test
