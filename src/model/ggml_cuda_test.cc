#include "model/ggml_cuda.h"

#include <ggml.h>
#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(GgmlCuda, TakesTheVersionThatItIsBuiltFor) {
  EXPECT_TRUE(check_ggml(ggml_version()).ok()) << ggml_version();
  EXPECT_TRUE(check_ggml(KVANT_GGML_VERSION ".99").ok());
}

TEST(GgmlCuda, RefusesOtherVersionsWithASentence) {
  for (const std::string other : {"", "0.1.0", KVANT_GGML_VERSION "0.1", "1." KVANT_GGML_VERSION}) {
    const Status checked = check_ggml(other);
    ASSERT_FALSE(checked.ok()) << other;
    EXPECT_NE(checked.error().message.find("has version " + other), std::string::npos);
  }
}

}  // namespace
}  // namespace kvant
