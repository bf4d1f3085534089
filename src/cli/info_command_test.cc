// Tests `kvant info` from a user's view: exit codes, messages and files.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing/cli.h"
#include "recipe/recipe.h"

namespace kvant::cli_test {
namespace {

TEST_F(Cli, InfoKnowsEveryBuiltInRecipe) {
  for (const Recipe& recipe : builtin_recipes()) {
    const Outcome outcome = run_model("info", {"--kv", recipe.name, "-c", "1000", "-b", "3"});
    EXPECT_EQ(outcome.code, 0) << recipe.name << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("KV cache at 1000 tokens"), std::string::npos) << recipe.name;
  }
}

// The plans of `info` and `run` must also agree on kernels and fall-backs. plan_report_test.cc covers recipes
// that calibrate on first use.
TEST_F(Cli, InfoPlansWhatRunRuns) {
  for (const Recipe& recipe : builtin_recipes()) {
    const auto needs = [](const std::string& text, const char* word) {
      return text.find(word) != std::string::npos;
    };
    const std::string text = to_string(recipe);
    const bool calibrates = needs(text, "vq-") || needs(text, "ladder") || needs(text, "correction") ||
                            needs(text, "int8") || needs(text, "smooth") || needs(text, "mix");
    if (recipe.tier != Tier::product || calibrates) continue;
    const Outcome info = run_model("info", {"--kv", recipe.name, "--json", path("info.json")});
    const Outcome answer =
        run_model("run", {"--kv", recipe.name, "-p", "abc", "-n", "1", "--json", path("run.json")});
    ASSERT_EQ(info.code, 0) << recipe.name << ": " << info.err;
    ASSERT_EQ(answer.code, 0) << recipe.name << ": " << answer.err;
    const auto planned = nlohmann::json::parse(read_file(path("info.json")));
    const auto used = nlohmann::json::parse(read_file(path("run.json")));
    EXPECT_EQ(planned["plan"], used["plan"]) << recipe.name;
  }
}

TEST_F(Cli, InfoStatesBitsAndConstants) {
  // The model has 2 layers x 2 KV heads x 2 sides with d = 64. Each side has a codebook of 2^8 centroids of 4
  // bytes with a scale, and K also has 64 smoothing factors.
  const Outcome outcome =
      run_model("info", {"--kv", "vecinfer-2bit", "-c", "1024", "--json", path("info.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(path("info.json")));
  const int bytes = 2 * 2 * (2 * (256 * 4 + 4) + 64 * 4);
  EXPECT_EQ(json["constant_bytes"], bytes);
  EXPECT_NEAR(json["constant_bits"].get<double>(), 8.0 * bytes / (2 * 2 * 2 * 64 * 1024), 1e-9);
  // At 897 to 1024 tokens, a window of 128 tokens and an open page of 0 to 127 tokens are BF16. The mean is
  // therefore at least 3.75 bits.
  EXPECT_GT(json["bits_all"].get<double>(), (2 * 896 + 16 * 128) / 1024.0);
  EXPECT_LT(json["bits_all"].get<double>(), (2.5 * 896 + 16 * 256) / 1024.0);
  EXPECT_NE(outcome.out.find("model constants"), std::string::npos);
}

}  // namespace
}  // namespace kvant::cli_test
