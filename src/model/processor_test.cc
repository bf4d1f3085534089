#include "model/processor.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(Processor, HasWhatGgmlWasCompiledFor) {
  EXPECT_TRUE(check_processor().ok());
}

TEST(Processor, InstructionsThatAreWantedAndNotThereAreNamed) {
  const InstructionSet sets[] = {
      {"AVX", true, true}, {"AVX2", true, false}, {"FMA", true, false}, {"AVX-512", false, false}};
  const Status status = check_instruction_sets(sets);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message.find("this processor has no AVX2, FMA, for which"), 0)
      << status.error().message;
  EXPECT_NE(status.error().message.find("make setup"), std::string::npos);
  EXPECT_TRUE(check_instruction_sets({sets, 1}).ok());
}

}  // namespace
}  // namespace kvant
