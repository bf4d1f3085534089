// Compares what kvant_supports says with what the other calls do.
#include <gtest/gtest.h>

#include <string>

#include "device/support.h"
#include "device/testing/plans.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {
namespace {

using device::testing::plan_of;
using device::testing::shape_of;

kvant_limits empty_limits() {
  kvant_limits limits{};
  limits.struct_size = sizeof limits;
  return limits;
}

TEST(CpuSupports, EveryFormatThatHasPagesAtTheHeadSize) {
  int n_sealable = 0, n_refused = 0;
  for (const std::string& format : format_names()) {
    for (const int d : {16, 48, 64, 96, 128, 256, 512, 520}) {
      const kvant_decode_shape shape = shape_of(format.c_str(), "bf16", d);
      const bool is_read = kvant_page_bytes(format.c_str(), d) > 0 && kvant_page_bytes("bf16", d) > 0;
      const kvant_plan plan = plan_of(shape);
      EXPECT_EQ(kvant_supports(&plan, nullptr), is_read ? KVANT_OK : KVANT_UNSUPPORTED)
          << format << ", " << d;
      EXPECT_EQ(kvant_decode_kernel(&shape) != nullptr, is_read) << format << ", " << d;
      n_refused += is_read ? 0 : 1;
      const kvant_decode_shape both = shape_of(format.c_str(), format.c_str(), d);
      const kvant_plan seals = plan_of(both, KVANT_SEALING);
      const bool is_sealed = is_read && kvant_can_seal(format.c_str()) != 0;
      EXPECT_EQ(kvant_supports(&seals, nullptr), is_sealed ? KVANT_OK : KVANT_UNSUPPORTED)
          << format << ", " << d;
      n_sealable += is_sealed ? 1 : 0;
    }
  }
  EXPECT_GT(n_sealable, 200);
  EXPECT_GT(n_refused, 50);
}

TEST(CpuSupports, SaysWhatThePlanLacks) {
  const kvant_decode_shape shape = shape_of("ch4g128", "tok4g128", 128);
  for (const kvant_feature feature : kFeatures) {
    const kvant_plan plan = plan_of(shape, feature);
    kvant_limits limits = empty_limits();
    const kvant_status status = kvant_supports(&plan, &limits);
    EXPECT_EQ(status, (limits.features & feature) != 0 ? KVANT_OK : KVANT_UNSUPPORTED) << feature;
    EXPECT_EQ(status == KVANT_OK, feature != KVANT_EVICTION) << feature;
    EXPECT_EQ(limits.max_queries, 8);
  }
  kvant_plan plan = plan_of(shape);
  plan.tail_format = "int8";
  EXPECT_EQ(kvant_supports(&plan, nullptr), KVANT_UNSUPPORTED);
  EXPECT_NE(std::string(kvant_last_error()).find("tail_format"), std::string::npos);
}

TEST(CpuSupports, RefusesBrokenPlans) {
  const kvant_decode_shape shape = shape_of("ch4g128", "tok4g128", 128);
  const auto refused = [](kvant_plan plan, kvant_limits limits, const char* named) {
    EXPECT_EQ(kvant_supports(&plan, &limits), KVANT_INVALID_ARGUMENT);
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  EXPECT_EQ(kvant_supports(nullptr, nullptr), KVANT_INVALID_ARGUMENT);
  refused(plan_of(shape, 1U << 20), empty_limits(), "plan.features");
  refused({sizeof(kvant_plan), nullptr, nullptr, 0, 0}, empty_limits(), "plan.shape");
  refused({8, &shape, nullptr, 0, 0}, empty_limits(), "kvant_plan");
  refused(plan_of(shape), {}, "kvant_limits");
}

TEST(CpuSupports, CallersOfItsVersionAlone) {
  EXPECT_EQ(kvant_check_version(KVANT_VERSION), KVANT_OK);
  for (const int other : {KVANT_VERSION + 1, KVANT_VERSION + 1000, KVANT_VERSION - 1000}) {
    EXPECT_EQ(kvant_check_version(other), KVANT_UNSUPPORTED) << other;
    EXPECT_NE(std::string(kvant_last_error()).find("kvant.h of another major version"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvant::device::cpu
