// Compares what kvant_supports says with what the other calls do. The test needs no GPU.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "device/support.h"
#include "device/testing/plans.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

using device::testing::plan_of;
using device::testing::shape_of;

TEST(CudaSupports, EveryFormatThatHasAKernelAndIsSealed) {
  int n_sealed = 0;
  for (const std::string& format : format_names()) {
    for (const int d : {64, 96, 128, 256, 512}) {
      const kvant_decode_shape shape = shape_of(format.c_str(), format.c_str(), d);
      const bool is_read = kvant_decode_kernel(&shape) != nullptr;
      const bool is_sealed = is_read && kvant_can_seal(format.c_str()) != 0;
      const kvant_plan reads = plan_of(shape, 0), seals = plan_of(shape, KVANT_SEALING);
      EXPECT_EQ(kvant_supports(&reads, nullptr), is_read ? KVANT_OK : KVANT_UNSUPPORTED)
          << format << ", " << d;
      EXPECT_EQ(kvant_supports(&seals, nullptr), is_sealed ? KVANT_OK : KVANT_UNSUPPORTED)
          << format << ", " << d;
      n_sealed += is_sealed ? 1 : 0;
    }
  }
  EXPECT_GT(n_sealed, 100);
}

TEST(CudaSupports, NamesWhatIsLacking) {
  const auto expect = [](const char* lacking, std::uint32_t feature,
                         const std::function<void(kvant_decode_shape&)>& change) {
    kvant_decode_shape shape = shape_of("ch4g128", "tok4g128", 128);
    change(shape);
    const kvant_plan plan = plan_of(shape, feature);
    kvant_limits limits{};
    limits.struct_size = sizeof limits;
    EXPECT_EQ(kvant_supports(&plan, &limits), lacking == nullptr ? KVANT_OK : KVANT_UNSUPPORTED) << feature;
    if (lacking != nullptr) {
      EXPECT_NE(std::string(kvant_last_error()).find(lacking), std::string::npos) << lacking;
    }
    EXPECT_EQ(limits.max_group, 16);
    EXPECT_EQ(limits.max_format_pairs, 8);
  };
  for (const kvant_feature feature : device::kFeatures)
    expect(feature == KVANT_EVICTION ? "KVANT_EVICTION" : nullptr, feature, [](auto&) {});
  expect("group must be 1 to 16", 0, [](auto& s) { s.group = 17; });
  expect("n_kv_heads must be 1 to 64", 0, [](auto& s) { s.n_kv_heads = 65; });
  expect("shape.kernels", 0, [](auto& s) { s.kernels = "avx2"; });
  expect("KVANT_CORRECTION", KVANT_CORRECTION, [](auto& s) { s.head_dim = 256; });
  expect("KVANT_CORRECTION", KVANT_CORRECTION, [](auto& s) { s.key_format = "tok4g128"; });
  expect("KVANT_PROTECTION", KVANT_PROTECTION, [](auto& s) { s.head_dim = 512; });
  expect("KVANT_INTEGER_PROMPTS", KVANT_INTEGER_PROMPTS, [](auto& s) { s.score_softcap = 30; });
  expect("KVANT_SEALED_ROWS", KVANT_SEALED_ROWS, [](auto& s) { s.key_format = s.value_format = "tcq4"; });
}

TEST(CudaSupports, CallersOfItsVersionAlone) {
  EXPECT_EQ(kvant_check_version(KVANT_VERSION), KVANT_OK);
  for (const int other : {KVANT_VERSION + 1, KVANT_VERSION + 1000, KVANT_VERSION - 1000})
    EXPECT_EQ(kvant_check_version(other), KVANT_UNSUPPORTED) << other;
}

}  // namespace
}  // namespace kvant::cuda
