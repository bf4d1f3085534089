#include "eval/tasks/batch_generation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/device_backend.h"
#include "cache/cache_fixture.h"
#include "model/device_machine.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

class BatchGeneration : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto file = write_tiny_model({.n_layers = 1});
    engine_ = Engine::load(file->path(), {.n_threads = 1}).value().release();
  }
  static void TearDownTestSuite() { delete engine_; }

  PlacedPlan plan(const std::string& recipe) const {
    return testing::plan_for(recipe, engine_->geometry(), nullptr, backend_->page_order());
  }

  // Returns prompts of different lengths, some shorter and some longer than a page.
  static std::vector<BatchPrompt> prompts(int max_tokens) {
    std::vector<BatchPrompt> all;
    for (const int n : {3, 140, 31, 64, 129, 1}) {
      BatchPrompt prompt{{}, {.max_tokens = max_tokens}};
      for (int i = 0; i < n; ++i) prompt.tokens.push_back(3 + (i * 7 + n) % 250);
      all.push_back(std::move(prompt));
    }
    return all;
  }

  // Completes a prompt with single steps of the engine, and returns the tokens up to the end.
  std::vector<std::int32_t> complete_alone(const std::string& recipe, const BatchPrompt& prompt) {
    Cache cache(plan(recipe), 0);
    const SequenceId sequence = cache.add();
    std::vector<float> logits(engine_->n_vocab());
    const MatrixView<float> row(logits.data(), 1, engine_->n_vocab());
    // A prompt's last page that is not whole is a step of its own.
    const int n = static_cast<int>(prompt.tokens.size()), whole = n - n % 128;
    const std::span<const std::int32_t> tokens(prompt.tokens);
    if (whole > 0) {
      const EngineInput input{sequence, tokens.first(whole), true, whole};
      EXPECT_TRUE(engine_->step(cache, *backend_, {&input, 1}, row.slice(0, 0)).ok());
    }
    const EngineInput rest{sequence, tokens.subspan(whole), true, n - whole - 1};
    EXPECT_TRUE(engine_->step(cache, *backend_, {&rest, 1}, row).ok());
    std::vector<std::int32_t> said;
    while (true) {
      const auto token =
          static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (engine_->tokenizer().ends_generation(token)) return said;
      said.push_back(token);
      if (static_cast<int>(said.size()) == prompt.options.max_tokens) return said;
      const EngineInput next{sequence, {&token, 1}};
      EXPECT_TRUE(engine_->step(cache, *backend_, {&next, 1}, row).ok());
    }
  }

  static inline Engine* engine_ = nullptr;
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
};

TEST_F(BatchGeneration, EqualsGenerationOnePromptAtATime) {
  for (const char* recipe : {"bf16", "kivi-2bit"}) {
    const auto all = prompts(20);
    int n_done = 0;
    const auto together =
        generate_batch(*engine_, *backend_, plan(recipe), all, {.parallel = 4}, [&] { ++n_done; });
    ASSERT_TRUE(together.ok()) << together.error().message;
    EXPECT_EQ(n_done, static_cast<int>(all.size()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto tokens = complete_alone(recipe, all[i]);
      std::string text;
      for (const std::int32_t token : tokens) text += engine_->tokenizer().piece(token);
      EXPECT_EQ((*together)[i].n_tokens, static_cast<int>(tokens.size())) << recipe << " " << i;
      EXPECT_EQ((*together)[i].was_cut, tokens.size() == 20U) << recipe << " " << i;
      EXPECT_EQ((*together)[i].text, text) << recipe << " " << i;
    }
  }
}

TEST_F(BatchGeneration, DoesNotDependOnItsSize) {
  const auto all = prompts(12);
  const auto one = generate_batch(*engine_, *backend_, plan("bf16"), all, {.parallel = 1}, [] {});
  const auto six = generate_batch(*engine_, *backend_, plan("bf16"), all,
                                  {.parallel = 6, .step_tokens = 32, .n_threads = 3}, [] {});
  ASSERT_TRUE(one.ok() && six.ok());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ((*one)[i].text, (*six)[i].text) << i;
}

// On a device, completions and prompts share steps. Rounding may change a token, after which a completion
// goes another way, so some completions may differ from the CPU's.
TEST_F(BatchGeneration, RunsPromptsAndCompletionsTogetherOnADevice) {
  TinyFile file("batch.gguf");
  TinyModelWriter(TinyModel{.n_layers = 1}).write(file.path());
  for (const testing::Place& place : testing::kPlaces) {
    const auto device = testing::device_at(place);
    if (device == nullptr) continue;
    const auto engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
    const auto backend = make_device_backend(device->pages());
    const auto placed = backend->place(testing::plan_for("bf16,tail=bf16", engine->geometry())).value();
    const auto all = prompts(12);
    const auto right = generate_batch(*engine_, *backend_, plan("bf16"), all, {.parallel = 3}, [] {});
    const auto found =
        generate_batch(*engine, *backend, placed, all, {.parallel = 3, .step_tokens = 64}, [] {});
    ASSERT_TRUE(right.ok() && found.ok()) << place.name;
    int n_equal = 0;
    for (std::size_t i = 0; i < all.size(); ++i) n_equal += (*found)[i].text == (*right)[i].text ? 1 : 0;
    EXPECT_GE(n_equal, 3) << place.name;
  }
}

TEST_F(BatchGeneration, StopsAtTexts) {
  auto all = prompts(20);
  const auto whole = generate_batch(*engine_, *backend_, plan("bf16"), all, {.parallel = 2}, [] {});
  ASSERT_TRUE(whole.ok());
  int n_checked = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string& text = (*whole)[i].text;
    if (text.size() < 4 || static_cast<unsigned char>(text[2]) >= 128) continue;
    all[i].options.stops = {text.substr(2, 1)};
    const auto stopped = generate_batch(*engine_, *backend_, plan("bf16"), {&all[i], 1}, {}, [] {});
    ASSERT_TRUE(stopped.ok());
    EXPECT_EQ(stopped->front().text, text.substr(0, text.find(text[2])));
    EXPECT_FALSE(stopped->front().was_cut);
    ++n_checked;
  }
  EXPECT_GT(n_checked, 0);
}

}  // namespace
}  // namespace kvant
