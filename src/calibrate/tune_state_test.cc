#include "calibrate/tune_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace kvant {
namespace {

TEST(TuneState, TakesUpTrialsOfTheSameWork) {
  const auto path =
      (std::filesystem::temp_directory_path() / ("kvant_tune_state_" + std::to_string(getpid()))).string();
  const SensitivityBend bend{.keys = 1.0 / 3, .contrast = -0.2};
  {
    TuneState state(path, "model a");
    EXPECT_FALSE(state.find(bend));
    state.add({}, 0.5);
    state.add(bend, 0.1 + 0.2);
    EXPECT_EQ(state.find(bend), 0.1 + 0.2);
  }
  const TuneState again(path, "model a");
  EXPECT_EQ(again.find(bend), 0.1 + 0.2);
  EXPECT_EQ(again.find({}), 0.5);
  EXPECT_FALSE(again.find({.keys = 1}));
  EXPECT_FALSE(TuneState(path, "model b").find(bend));
  again.remove();
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace kvant
