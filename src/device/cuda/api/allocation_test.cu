// Checks that calls allocate no memory. The test counts every allocation by `new` in this program and the
// library.
#include <gtest/gtest.h>

#include <utility>

#include "base/testing/counted_new.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// These calls precede any launch and work without a GPU: formats, their kernels, refusals.
TEST(Calls, TakeNoMemoryAfterTheFirst) {
  alignas(16) static std::int32_t some[64]{};
  // Some pairs have their own kernel, some use the generic kernel, and some have codebooks; a few cannot be
  // sealed.
  static constexpr std::pair<const char*, const char*> kPairs[] = {
      {"ch4g128", "tok4g128"}, {"tcq3", "tcq2"}, {"fp8", "lm3"}, {"vq-d4b8", "vq-d4b8"}, {"pq-d4b8", "f16"}};
  for (const auto& pair : kPairs) {
    const char* const key = pair.first;
    const char* const value = pair.second;
    kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, key, value};
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.sealed = layer.tail = {some, 0, 0, 0, 0, some, 16, 0, 0, 0};
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = some;
    kvant_dequantization rows{};
    rows.struct_size = sizeof rows;
    rows.n_seqs = rows.n_pages = rows.n_heads = 1;
    rows.token_stride = 4;  // The call refuses this stride.
    const auto ask = [&] {
      EXPECT_NE(kvant_decode_kernel(&shape), nullptr);
      kvant_page_bytes(key, 128);
      kvant_can_seal(value);
      EXPECT_NE(kvant_seal(&shape, &layer, nullptr, some, nullptr), KVANT_OK);
      EXPECT_NE(kvant_dequantize(&shape, &lengths, &layer, &rows, nullptr), KVANT_OK);
      EXPECT_NE(kvant_decode_attention(&shape, &lengths, &layer, nullptr, 0, nullptr), KVANT_OK);
    };
    ask();
    const long before = testing::allocations.load();
    for (int i = 0; i < 3; ++i) ask();
    EXPECT_EQ(testing::allocations.load(), before) << key << " + " << value;
  }
}

}  // namespace
}  // namespace kvant::cuda
